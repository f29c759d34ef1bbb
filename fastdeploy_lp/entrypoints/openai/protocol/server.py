"""Bodies of the routes of served models and of the server's status."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from fastdeploy_lp.entrypoints.openai.protocol.request import now


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


class ServerLoad(BaseModel):
    """Body of GET /load: sequences in slots, sequences waiting for a slot, and their sum under vLLM's name."""

    server_load: int
    running: int
    waiting: int


class ServerVersion(BaseModel):
    """Body of GET /version."""

    version: str
