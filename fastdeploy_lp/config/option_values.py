"""What options may be set to: checks that raise ValueError naming the option and what is allowed."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, TypeGuard, Union, get_args, get_origin, get_type_hints

KINDS = {bool: "true or false", str: "a text"}


def require_types(options: Any) -> None:
    """Raise ValueError unless every field of a dataclass that is to be a bool or a str is one, or None where it may."""
    hints = get_type_hints(type(options))
    for field in dataclasses.fields(options):
        kind, value = without_none(hints[field.name]), getattr(options, field.name)
        if kind not in KINDS or isinstance(value, kind) or (value is None and kind != hints[field.name]):
            continue
        raise ValueError(f"{field.name}: {value!r} is not allowed; it must be {KINDS[kind]}")


def without_none(hint: Any) -> Any:
    """A type without `| None`."""
    kinds = [kind for kind in get_args(hint) if kind is not type(None)]
    return kinds[0] if get_origin(hint) is Union or type(hint).__name__ == "UnionType" else hint


def require_at_least(least: int, name: str, value: object) -> None:
    """Raise ValueError unless `value` is a whole number from `least` on."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name}: {value!r} is not allowed; it must be an integer of at least {least}")


def require_seconds(name: str, value: object, *, above_zero: bool = False) -> None:
    """Raise ValueError unless `value` is a finite number from 0 on, or above it."""
    if not is_number(value) or not 0 <= value < math.inf or (above_zero and value == 0):
        allowed = "above 0 seconds" if above_zero else "0 or more seconds"
        raise ValueError(f"{name}: {value!r} is not allowed; it must be {allowed}")


def require_share(name: str, value: object) -> None:
    """Raise ValueError unless `value` is a number above 0 and at most 1."""
    if not is_number(value) or not 0 < value <= 1:
        raise ValueError(f"{name}: {value!r} is not allowed; it must be above 0 and at most 1")


def require_port(name: str, port: object, count: int = 1) -> None:
    """Raise ValueError unless `port` is None or the first of `count` TCP port numbers."""
    last = 65536 - count
    if port is not None and not (isinstance(port, int) and not isinstance(port, bool) and 1 <= port <= last):
        behind = f", since {count} workers have ports behind each other" if count > 1 else ""
        raise ValueError(f"{name}: {port} is not a TCP port; allowed are 1 to {last}{behind}")


def require_one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    """Raise ValueError unless `value` is one of these."""
    if value not in allowed:
        raise ValueError(f"{name}: {value!r} is none of {', '.join(allowed)}")


def is_number(value: object) -> TypeGuard[float]:
    """Whether it is an int or a float; a bool is none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)
