"""Bodies of POST /pooling."""

from __future__ import annotations

import uuid
from typing import Any, Literal

from pydantic import BaseModel, Field, model_validator
from typing_extensions import Self

from fastdeploy_lp.entrypoints.openai.protocol.chat import FewMessages
from fastdeploy_lp.entrypoints.openai.protocol.embedding import EmbeddingUsage
from fastdeploy_lp.entrypoints.openai.protocol.request import (
    EachOf,
    PromptRequest,
    RequestId,
    Texts,
    Timeout,
    TokenIds,
    now,
)
from fastdeploy_lp.request.pooling_params import PoolingParams
from fastdeploy_lp.request.prompt_options import NAMES

KINDS = ("input", "messages", "data")


class PoolingBody(PromptRequest):
    """Body of POST /pooling: one of `input` (as in embeddings), `messages` (of a chat) and `data` (an IO processor's).

    With `data`, the IO processor decides the unset parameters and the form of the answer.
    """

    input: str | TokenIds | Texts | EachOf[TokenIds] | None = Field(default=None, min_length=1)
    messages: FewMessages | None = Field(default=None, min_length=1)
    data: Any = None
    model: str | None = None
    task: Literal["embed", "token_embed"] | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    pooling: Literal["mean", "last"] | None = None
    normalize: bool | None = None
    add_generation_prompt: bool | None = None
    user: str | None = None
    request_id: RequestId | None = None
    timeout: Timeout | None = None

    @model_validator(mode="after")
    def _one_thing_to_pool(self) -> Self:
        given = [name for name in KINDS if getattr(self, name) is not None]
        if not given:
            raise ValueError("input: needed, unless there are messages or data")
        if len(given) > 1:
            raise ValueError(f"{given[1]}: not allowed together with {given[0]}")
        if self.add_generation_prompt is not None and self.messages is None:
            raise ValueError("add_generation_prompt: only allowed together with messages")
        for name in ("encoding_format", *NAMES) if self.data is not None else ():
            if getattr(self, name) is not None:
                raise ValueError(f"{name}: not allowed together with data; the IO processor decides")
        return self

    def pooling_params(self) -> PoolingParams | None:
        """Returns the pooling parameters, None if none is set; raises ValueError naming the field."""
        fields = {name: getattr(self, name) for name in ("task", "pooling", "dimensions", "normalize")}
        given = {name: value for name, value in fields.items() if value is not None}
        return PoolingParams(**given) if given else None


def new_pooling_id(request_id: str | None = None) -> str:
    """Returns an id for an answer, derived from the request's id if it has one."""
    return f"pool-{(request_id or uuid.uuid4().hex).removeprefix('pool-')}"


class PooledInput(BaseModel):
    """One vector per input or per token: numbers, or their little-endian float32 bytes in base64, row by row."""

    object: Literal["pooling"] = "pooling"
    index: int
    shape: list[int]
    data: list[float] | list[list[float]] | str


class PoolingResponse(BaseModel):
    """Body of an answer to `input` or `messages`."""

    id: str
    object: Literal["list"] = "list"
    created: int = Field(default_factory=now)
    model: str
    data: list[PooledInput]
    usage: EmbeddingUsage


class IOProcessorResponse(BaseModel):
    """Body of an answer to `data`; its `data` is the IO processor's answer."""

    id: str
    object: Literal["io_processor"] = "io_processor"
    created: int = Field(default_factory=now)
    model: str
    data: Any
    usage: EmbeddingUsage
