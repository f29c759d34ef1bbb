"""Fields of a Hugging Face `config.json`, read with errors that name them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from fastdeploy_lp.checkpoint.errors import CheckpointError

FILE = "config.json"


def positive_int(config: Mapping[str, Any], field: str, default: int | None = None) -> int:
    """Returns the whole number under `field`, or `default` if it is absent or null.

    Raises CheckpointError for a field that is missing without a default, and for anything but a whole number above 0.
    """
    value = config.get(field)
    if value is None:
        value = default
    if value is None:
        raise CheckpointError(f"{FILE}: {field} is missing")
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise CheckpointError(f"{FILE}: {field} is {value!r}; it must be a whole number of at least 1")
    return value


def positive_float(config: Mapping[str, Any], field: str, default: float | None = None, *, prefix: str = "") -> float:
    """As `positive_int`, for a finite number above 0; errors put `prefix` before the field's name."""
    value = config.get(field)
    if value is None:
        value = default
    if value is None:
        raise CheckpointError(f"{FILE}: {prefix}{field} is missing")
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= sys.float_info.max:
        raise CheckpointError(f"{FILE}: {prefix}{field} is {value!r}; it must be a number above 0")
    return float(value)


def flag(config: Mapping[str, Any], field: str, *, default: bool = False) -> bool:
    """Returns the boolean under `field`; raises CheckpointError for any other value."""
    value = config.get(field)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise CheckpointError(f"{FILE}: {field} is {value!r}; it must be true or false")
    return value


def texts(config: Mapping[str, Any], field: str) -> list[str]:
    """Returns the list of strings under `field`, empty if absent or null; raises CheckpointError for other values."""
    value = config.get(field)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise CheckpointError(f"{FILE}: {field} is {value!r}; it must be a list of texts")
    return value
