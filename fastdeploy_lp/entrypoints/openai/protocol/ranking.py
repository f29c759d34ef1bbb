"""Bodies of POST /v1/rerank and POST /v1/score."""

from __future__ import annotations

import uuid
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, field_validator, model_validator
from typing_extensions import Self

from fastdeploy_lp.entrypoints.openai.protocol.embedding import EmbeddingUsage
from fastdeploy_lp.entrypoints.openai.protocol.request import (
    EachOf,
    PromptRequest,
    RequestId,
    RequestModel,
    Texts,
    Timeout,
    now,
    require_few,
)
from fastdeploy_lp.request.limits import MAX_PROMPTS
from fastdeploy_lp.request.pooling_params import PoolingParams

Text = Annotated[str, Field(min_length=1)]


class ComparisonRequest(PromptRequest):
    """Common fields of bodies that compare texts by the cosine of their embeddings."""

    model: str | None = None
    dimensions: int | None = None
    pooling: Literal["mean", "last"] | None = None
    user: str | None = None
    request_id: RequestId | None = None
    timeout: Timeout | None = None

    def pooling_params(self) -> PoolingParams:
        """Returns the parameters of the embeddings; raises ValueError naming the field."""
        return PoolingParams(pooling=self.pooling, dimensions=self.dimensions, normalize=True)


class RerankDocument(RequestModel):
    """A document as an object."""

    text: Text


class RerankRequest(ComparisonRequest):
    """Body of POST /v1/rerank, as Jina's, Cohere's and vLLM's clients send it."""

    query: Text
    documents: Texts | EachOf[RerankDocument] = Field(min_length=1)
    top_n: int | None = Field(default=None, ge=1)
    return_documents: bool = True

    @field_validator("documents", mode="before")
    @classmethod
    def _few_documents(cls, value: Any) -> Any:
        require_few("documents", value, MAX_PROMPTS)
        return value

    @property
    def texts(self) -> list[str]:
        """The documents' texts."""
        return [each if isinstance(each, str) else each.text for each in self.documents]


class ScoreRequest(ComparisonRequest):
    """Body of POST /v1/score: one text and one or many others, or two lists of the same length."""

    text_1: Text | Texts = Field(min_length=1)
    text_2: Text | Texts = Field(min_length=1)

    @model_validator(mode="after")
    def _pairs(self) -> Self:
        count, others = len(self.first), len(self.second)
        if count != others and count != 1:
            raise ValueError(f"text_1: must be one text or as many as text_2 has, {others}, not {count}")
        return self

    @property
    def first(self) -> list[str]:
        """The first text of each pair, or the one that is compared with all others."""
        return [self.text_1] if isinstance(self.text_1, str) else self.text_1

    @property
    def second(self) -> list[str]:
        """The second text of each pair."""
        return [self.text_2] if isinstance(self.text_2, str) else self.text_2


def new_ranking_id(kind: str, request_id: str | None = None) -> str:
    """Returns an id for an answer, derived from the request's id if it has one; `kind` is its prefix."""
    return f"{kind}-{(request_id or uuid.uuid4().hex).removeprefix(f'{kind}-')}"


class RerankText(BaseModel):
    """The text of a document."""

    text: str


class RerankResult(BaseModel):
    """A document's place in the request and the cosine of its embedding and the query's, -1 to 1."""

    index: int
    document: RerankText | None = None
    relevance_score: float


class RerankResponse(BaseModel):
    """Body of an answer of POST /v1/rerank; the most relevant document is first."""

    id: str
    model: str
    usage: EmbeddingUsage
    results: list[RerankResult]


class Score(BaseModel):
    """The cosine of the embeddings of one pair, -1 to 1."""

    index: int
    object: Literal["score"] = "score"
    score: float


class ScoreResponse(BaseModel):
    """Body of an answer of POST /v1/score."""

    id: str
    object: Literal["list"] = "list"
    created: int = Field(default_factory=now)
    model: str
    data: list[Score]
    usage: EmbeddingUsage
