"""The keys of the environment, for servers and for their clients."""

from __future__ import annotations

import os

from fastdeploy_lp.config import ADMIN_API_KEY_VARIABLE, API_KEY_VARIABLE


def keys_of_environment() -> list[str]:
    """What a server takes: all of them, which are separated by commas."""
    return _keys_in(API_KEY_VARIABLE)


def admin_keys_of_environment() -> list[str]:
    """The operators' keys that a server takes, which are separated by commas."""
    return _keys_in(ADMIN_API_KEY_VARIABLE)


def key_of_environment() -> str | None:
    """What a client sends: the first of them; None where there is none."""
    return next((key.strip() for key in keys_of_environment()), None)


def _keys_in(variable: str) -> list[str]:
    return [key for key in os.environ.get(variable, "").split(",") if key.strip()]
