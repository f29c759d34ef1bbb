"""Bodies of /v1/models."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from fastdeploy_lp.entrypoints.openai.protocol.clock import now


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
