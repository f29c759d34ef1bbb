"""The body of a failure."""

from __future__ import annotations

from pydantic import BaseModel


class ErrorInfo(BaseModel):
    """`type` is OpenAI's class of error, `param` the JSON path of the field at fault."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorResponse(BaseModel):
    """The body of every response that is no success, and of an error event in a stream."""

    error: ErrorInfo
