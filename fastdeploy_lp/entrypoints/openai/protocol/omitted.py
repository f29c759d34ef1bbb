"""Fields that answers omit when they have no value."""

from __future__ import annotations

from typing import Annotated, TypeVar

from pydantic import Field

Value = TypeVar("Value")


def _is_none(value: object) -> bool:
    return value is None


Omitted = Annotated[Value | None, Field(exclude_if=_is_none)]
"""A field that is omitted if None; declare it with the default None."""
