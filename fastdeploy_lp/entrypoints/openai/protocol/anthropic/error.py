"""Body of a failure of the Messages API."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

from fastdeploy_lp.entrypoints.openai.protocol.error import ErrorInfo
from fastdeploy_lp.entrypoints.openai.protocol.request import Omitted

# Ends of the paths of the Messages API; a proxy may add a prefix.
MESSAGES_PATHS = ("/v1/messages", "/v1/messages/count_tokens")
ErrorType = Literal[
    "invalid_request_error",
    "authentication_error",
    "permission_error",
    "not_found_error",
    "timeout_error",
    "rate_limit_error",
    "overloaded_error",
    "api_error",
]
# Of statuses below 500 that are not listed: invalid_request_error; of others: api_error.
TYPES: dict[int, ErrorType] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    429: "rate_limit_error",
    503: "overloaded_error",
}
SERVER_ERRORS = 500


class ErrorDetails(BaseModel):
    """The code of OpenAI's body, where clients of the Messages API look for one."""

    error_code: str


class MessagesErrorInfo(BaseModel):
    """Details of an error; the message begins with the path of the invalid field."""

    type: ErrorType
    message: str
    details: Omitted[ErrorDetails] = None


class MessagesError(BaseModel):
    """Body of every error response of the Messages API, and of an error event in a stream."""

    type: Literal["error"] = "error"
    error: MessagesErrorInfo
    request_id: str | None

    @classmethod
    def of(cls, status: int, info: ErrorInfo, request_id: str | None) -> MessagesError:
        """Returns the error of a status and of OpenAI's body."""
        kind = TYPES.get(status, "invalid_request_error" if status < SERVER_ERRORS else "api_error")
        details = None if info.code is None else ErrorDetails(error_code=info.code)
        return cls(error=MessagesErrorInfo(type=kind, message=info.message, details=details), request_id=request_id)
