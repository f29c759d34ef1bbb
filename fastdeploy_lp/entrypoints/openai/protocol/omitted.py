"""Fields that answers leave out when there is nothing to tell."""

from __future__ import annotations

from typing import Annotated, TypeVar

from pydantic import Field

Value = TypeVar("Value")


def _is_none(value: object) -> bool:
    return value is None


Omitted = Annotated[Value | None, Field(exclude_if=_is_none)]
"""A field that is left out while it is None; give it the default None."""
