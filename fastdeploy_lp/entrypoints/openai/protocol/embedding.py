"""Bodies of POST /v1/embeddings."""

from __future__ import annotations

import uuid
from typing import Literal

from pydantic import BaseModel, Field

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


class EmbeddingRequest(PromptRequest):
    """Body of POST /v1/embeddings; each text or token-id list yields one embedding, in order.

    `pooling`, `normalize`, `request_id` and `timeout` are extensions of OpenAI's API.
    """

    input: str | TokenIds | Texts | EachOf[TokenIds] = Field(min_length=1)
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    user: str | None = None
    pooling: Literal["mean", "last"] | None = None
    normalize: bool = True
    request_id: RequestId | None = None
    timeout: Timeout | None = None

    def pooling_params(self) -> PoolingParams:
        """Returns the pooling parameters; raises ValueError naming the field."""
        return PoolingParams(pooling=self.pooling, dimensions=self.dimensions, normalize=self.normalize)


def new_embedding_id(request_id: str | None = None) -> str:
    """Returns an id for an answer with embeddings, derived from the request's id if it has one."""
    return f"embd-{(request_id or uuid.uuid4().hex).removeprefix('embd-')}"


class Embedding(BaseModel):
    """One input's embedding: numbers, or their little-endian float32 bytes in base64."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingUsage(BaseModel):
    """Token counts over all inputs; both are equal, since no tokens are generated."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingResponse(BaseModel):
    """Body of an answer of POST /v1/embeddings."""

    id: str
    object: Literal["list"] = "list"
    created: int = Field(default_factory=now)
    model: str
    data: list[Embedding]
    usage: EmbeddingUsage
