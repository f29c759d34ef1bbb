"""The keys of the environment, for servers and for their clients."""

from __future__ import annotations

import os

from fastdeploy_lp.config import API_KEY_VARIABLE


def keys_of_environment() -> list[str]:
    """What a server takes: all of them, which are separated by commas."""
    return [key for key in os.environ.get(API_KEY_VARIABLE, "").split(",") if key.strip()]


def key_of_environment() -> str | None:
    """What a client sends: the first of them; None where there is none."""
    return next((key.strip() for key in keys_of_environment()), None)
