"""API keys from the environment, for servers and their clients."""

from __future__ import annotations

import os

from fastdeploy_lp.config import ADMIN_API_KEY_VARIABLE, API_KEY_VARIABLE


def keys_of_environment() -> list[str]:
    """Returns the keys that a server accepts: all in the variable, separated by commas."""
    return _keys_in(API_KEY_VARIABLE)


def admin_keys_of_environment() -> list[str]:
    """Returns the operators' keys that a server accepts, separated by commas in the variable."""
    return _keys_in(ADMIN_API_KEY_VARIABLE)


def key_of_environment() -> str | None:
    """Returns the key that a client sends: the first one, or None if the variable has none."""
    return next((key.strip() for key in keys_of_environment()), None)


def _keys_in(variable: str) -> list[str]:
    return [key for key in os.environ.get(variable, "").split(",") if key.strip()]
