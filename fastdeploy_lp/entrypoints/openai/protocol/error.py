"""Body of an error response."""

from __future__ import annotations

from pydantic import BaseModel


class ErrorInfo(BaseModel):
    """Details of an error: `type` is OpenAI's error class, `param` the JSON path of the invalid field."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorResponse(BaseModel):
    """Body of every error response, and of an error event in a stream."""

    error: ErrorInfo
