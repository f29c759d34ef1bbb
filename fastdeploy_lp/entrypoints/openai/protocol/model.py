"""The base class of bodies, omitted fields and time stamps."""

from __future__ import annotations

import time
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, Field

Value = TypeVar("Value")


def _is_none(value: object) -> bool:
    return value is None


Omitted = Annotated[Value | None, Field(exclude_if=_is_none)]
"""A field that is omitted if None; declare it with the default None."""


def now() -> int:
    """Returns whole seconds since 1970."""
    return int(time.time())


class ModelCard(BaseModel):
    """One served model."""

    id: str
    object: Literal["model"] = "model"
    created: int = Field(default_factory=now)
    owned_by: str = "fastdeploy_lp"
    max_model_len: int


class ModelList(BaseModel):
    """Body of GET /v1/models."""

    object: Literal["list"] = "list"
    data: list[ModelCard]
