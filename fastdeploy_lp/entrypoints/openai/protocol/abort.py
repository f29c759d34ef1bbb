"""Bodies of /v1/abort_requests, in upstream's shape."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field, model_validator
from typing_extensions import Self

from fastdeploy_lp.entrypoints.openai.protocol.request import RequestModel
from fastdeploy_lp.request.limits import MAX_ABORTED_IDS

# Matches every valid id of a request or a response.
AbortedId = Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[!-~]+$")]


class AbortRequestsRequest(RequestModel):
    """Requests to abort: by id (of the response, or `X-Request-Id`), or all of them."""

    req_ids: Annotated[list[AbortedId], Field(fail_fast=True, max_length=MAX_ABORTED_IDS)] | None = None
    abort_all: bool = False

    @model_validator(mode="after")
    def _says_which(self) -> Self:
        if self.abort_all and self.req_ids:
            raise ValueError("req_ids: not allowed together with abort_all: true")
        if not self.abort_all and not self.req_ids:
            raise ValueError("req_ids: the ids of requests are needed, or abort_all: true")
        return self


class AbortedRequest(BaseModel):
    """An aborted request, and the number of tokens it generated."""

    request_id: str
    output_token_count: int


class AbortResult(BaseModel):
    """Result for the ids; `not_found` lists ids without a running request."""

    aborted: list[AbortedRequest]
    not_found: list[str]


class AbortRequestsResponse(BaseModel):
    """Body of the answer; `request_id` is the id of the abort request itself."""

    request_id: str
    status: Literal["success"] = "success"
    error_message: None = None
    result: AbortResult
