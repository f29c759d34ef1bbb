"""Ranks texts by the likeness of their vectors to a query's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from fastdeploy_lp import IOProcessor, PoolingParams
from fastdeploy_lp.request.outputs import PoolingRequestOutput


class Question(BaseModel):
    """A request's `data`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    query: str = Field(min_length=1)
    texts: list[str] = Field(min_length=1, max_length=64)


class Place(BaseModel):
    """One text: its place in the request, and the cosine of its vector and the query's."""

    index: int
    score: float


class Ranking(IOProcessor[Question, list[Place]]):
    """The texts of a request, the one most like the query first."""

    def parse_request(self, data: object) -> Question:
        """Validates `data`; pydantic's errors become a 400 that names the field."""
        return Question.model_validate(data)

    def validate_or_generate_params(self, params: PoolingParams | None = None) -> PoolingParams:
        """The mean over all tokens, at length 1, unless the request says otherwise."""
        return params or PoolingParams(pooling="mean")

    def pre_process(self, prompt: Question, request_id: str | None = None) -> Sequence[str]:
        """The query's prompt, then one a text."""
        return [prompt.query, *prompt.texts]

    def post_process(self, model_output: Sequence[PoolingRequestOutput], request_id: str | None = None) -> list[Place]:
        """`model_output` is in the order of the prompts."""
        query, *texts = [each.outputs.data.astype(np.float64) for each in model_output]
        places = [Place(index=index, score=float(query @ text)) for index, text in enumerate(texts)]
        return sorted(places, key=lambda place: -place.score)

    def output_to_response(self, output: list[Place]) -> list[dict[str, float]]:
        """Returns the answer's `data`."""
        return [place.model_dump() for place in output]
