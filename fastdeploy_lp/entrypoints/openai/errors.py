"""Conversion of every failure to an OpenAI error body and its HTTP status."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from fastdeploy_lp.engine.errors import (
    EngineDeadError,
    EngineDrainingError,
    EngineRestartingError,
    EngineStartingError,
    InvalidRequestError,
    ProcessorUnavailableError,
    QueueFullError,
    RequestAbortedError,
    RequestFailedError,
    RequestImpossibleError,
    RequestTimeoutError,
    WorkerLostError,
)
from fastdeploy_lp.entrypoints.openai.protocol.anthropic.error import MESSAGES_PATHS, MessagesError
from fastdeploy_lp.entrypoints.openai.protocol.error import ErrorInfo, ErrorResponse
from fastdeploy_lp.request.suggestion import did_you_mean

logger = logging.getLogger(__name__)

CLIENT_CLOSED_REQUEST = 499
CLOSED_HANDLE = "the handler is closed"
# Codes and messages for statuses that the framework raises; an explicit reason takes precedence over the message.
HTTP_ERRORS = {
    404: ("unknown_url", "this server has no URL {path}"),
    405: ("method_not_allowed", "{method} is not allowed on {path}"),
    413: ("request_too_large", "the body is too large"),
}
# Characters of an error's message, and of its path.
MAX_SHOWN = 4000
# The framework's message for a body on which the JSON parser itself failed.
UNREADABLE_BODY = "There was an error parsing the body"
# While the server loads its model or shuts down: clients back off by themselves after further refusals.
RETRY_AFTER_SECONDS = "1"


class NotFoundError(Exception):
    """The request names something unknown; `param` is the field that names it, `code` is the kind of thing."""

    def __init__(self, message: str, param: str | None, code: str) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class BodyTimeoutError(Exception):
    """The request's body did not arrive in time."""


class BodyRoomError(Exception):
    """The request's body was refused to make room for others."""


class OperatorOnlyError(Exception):
    """The request needs an operator's key; `param` is the field that requires it, None for the route itself."""

    def __init__(self, param: str | None = None) -> None:
        named = f"{param}: " if param else ""
        super().__init__(f"{named}this is for operators: send one of the keys of --admin-api-key")
        self.param = param


class ForbiddenError(Exception):
    """The client may not do what it asks for; `code` is the kind of thing."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class ConflictError(Exception):
    """The request does not fit what the client has stored; `code` is the kind of thing."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


LATER = (BodyRoomError, EngineStartingError, EngineRestartingError, EngineDrainingError, WorkerLostError)


def is_disconnect(error: Exception) -> bool:
    """Returns True if a request failed because its connection is closed.

    uvicorn closes a connection when the bytes after a request are not HTTP, and still answers the request; uvloop then
    raises a plain RuntimeError.
    """
    return isinstance(error, ClientDisconnect) or (isinstance(error, RuntimeError) and CLOSED_HANDLE in str(error))


def describe(error: Exception) -> tuple[int, ErrorInfo]:
    """Returns the HTTP status and error body for an exception of a request."""
    if isinstance(error, InvalidRequestError):
        return 400, ErrorInfo(message=str(error), type="invalid_request_error", param=error.param, code=error.code)
    if isinstance(error, NotFoundError):
        return 404, ErrorInfo(message=str(error), type="invalid_request_error", param=error.param, code=error.code)
    if isinstance(error, OperatorOnlyError):
        return 403, ErrorInfo(
            message=str(error), type="invalid_request_error", param=error.param, code="admin_key_needed"
        )
    if isinstance(error, ForbiddenError | ConflictError):
        status = 403 if isinstance(error, ForbiddenError) else 409
        return status, ErrorInfo(message=str(error), type="invalid_request_error", code=error.code)
    if isinstance(error, QueueFullError):
        return 429, ErrorInfo(message=str(error), type="rate_limit_error", code="rate_limit_exceeded")
    if isinstance(error, BodyTimeoutError):
        reason = "the body did not arrive in time"
        return 408, ErrorInfo(message=reason, type="timeout_error", code="body_timeout")
    if isinstance(error, BodyRoomError):
        reason = "more bytes of bodies arrive than this server keeps (max_bodies_size), most of them of this client"
        return 503, ErrorInfo(message=reason, type="server_error", code="too_many_bodies")
    if isinstance(error, EngineStartingError):
        return 503, ErrorInfo(message=str(error), type="server_error", code="engine_starting")
    if isinstance(error, EngineRestartingError):
        return 503, ErrorInfo(message=str(error), type="server_error", code="engine_restarting")
    if isinstance(error, EngineDrainingError):
        return 503, ErrorInfo(message=str(error), type="server_error", code="server_draining")
    if isinstance(error, WorkerLostError):
        return 503, ErrorInfo(message=str(error), type="server_error", code="worker_lost")
    if isinstance(error, RequestTimeoutError):
        return 408, ErrorInfo(message=str(error), type="timeout_error", param="timeout", code="timeout")
    if isinstance(error, EngineDeadError):
        return 503, ErrorInfo(message=f"the engine is down: {error}", type="server_error", code="engine_down")
    if isinstance(error, ProcessorUnavailableError):
        return 503, ErrorInfo(message=str(error), type="server_error", code="logits_processor_quarantined")
    if isinstance(error, RequestImpossibleError):
        # Not a server error, since clients retry those.
        return 400, ErrorInfo(message=str(error), type="invalid_request_error", code="request_impossible")
    if isinstance(error, RequestAbortedError):
        # A status that clients do not retry automatically.
        return CLIENT_CLOSED_REQUEST, ErrorInfo(
            message=str(error), type="invalid_request_error", code="request_aborted"
        )
    if isinstance(error, RequestFailedError):
        return 500, ErrorInfo(message=str(error), type="server_error", code="request_failed")
    if is_disconnect(error):
        return CLIENT_CLOSED_REQUEST, ErrorInfo(message="the client has gone", type="invalid_request_error")
    logger.error("unexpected error", exc_info=error)
    return 500, ErrorInfo(message="internal error; the server's log has the cause", type="server_error")


def install(app: FastAPI) -> None:
    """Answers every exception of the app's routes in OpenAI's shape."""

    async def answer(_: Request, error: Exception) -> Response:
        return error_response(*describe(error), _headers(error))

    for kind in (
        *(InvalidRequestError, NotFoundError, OperatorOnlyError, QueueFullError, EngineDeadError, RequestFailedError),
        *(EngineStartingError, EngineRestartingError, EngineDrainingError, BodyTimeoutError, BodyRoomError),
        *(ForbiddenError, ConflictError),
        Exception,
    ):
        app.add_exception_handler(kind, answer)
    app.add_exception_handler(RequestValidationError, _invalid_body)
    app.add_exception_handler(HTTPException, _http_error)


def _headers(error: Exception) -> dict[str, str] | None:
    """Returns headers that control retries and the connection; None for the defaults."""
    if isinstance(error, QueueFullError):
        return {"Retry-After": str(error.retry_after)}
    if isinstance(error, RequestTimeoutError):
        # OpenAI's packages retry status 408 by default; here the request has already used its time.
        return {"x-should-retry": "false"}
    if isinstance(error, BodyTimeoutError):
        # The rest of the body may still arrive, and must not be parsed as a request.
        return {"Connection": "close"}
    return {"Retry-After": RETRY_AFTER_SECONDS} if isinstance(error, LATER) else None


async def _invalid_body(request: Request, error: Exception) -> Response:
    if not isinstance(error, RequestValidationError):
        raise error
    first = foremost(error.errors(), error.body)
    if first["type"] == "json_invalid":
        reason = first.get("ctx", {}).get("error", "malformed")
        info = ErrorInfo(
            message=f"the body is no valid JSON: {reason}", type="invalid_request_error", code="invalid_json"
        )
        return error_response(400, info)
    if isinstance(error.body, bytes):
        message = "the body is not read as JSON: send the header Content-Type: application/json"
        return error_response(
            400, ErrorInfo(message=message, type="invalid_request_error", code="invalid_content_type")
        )
    param = _path_of(first, error.body)
    code = "missing_required_parameter" if first["type"] == "missing" else "invalid_value"
    param, reason = field_and_reason(first, param)
    if first["type"] == "extra_forbidden":
        reason, code = "this field is unknown or not supported yet", "unknown_parameter"
        reason = f"{reason}{did_you_mean(param, _fields_of_body(request))}"
    message = f"{param}: {reason}" if param else reason
    return error_response(400, ErrorInfo(message=message, type="invalid_request_error", param=param or None, code=code))


def _fields_of_body(request: Request) -> Iterable[str]:
    """Returns the names of the fields of the route's body."""
    body = getattr(request.scope.get("route"), "body_field", None)
    return () if body is None else getattr(body.field_info.annotation, "model_fields", ())


def field_and_reason(error: Mapping[str, Any], param: str) -> tuple[str, str]:
    """Returns the path of the faulty field and the reason; `param` is the path that pydantic reports."""
    reason = _reason(error, param)
    if error["type"] == "value_error" and ": " in reason:  # a whole object's validator names its field in the message
        field, reason = reason.split(": ", 1)
        param = f"{param}.{field}" if param else field
    return param, reason


def _reason(error: Mapping[str, Any], param: str) -> str:
    """Returns pydantic's reason, except where it uses Python's terms or would not help a client."""
    kind = error["type"]
    if kind == "missing" and not param:
        return "a body is needed: a JSON object"
    if kind == "dict_type":
        return "must be a JSON object"
    if kind == "model_attributes_type":
        return "must be a JSON object" if param else "the body must be a JSON object"
    if kind in ("too_short", "string_too_short") and error["ctx"]["min_length"] == 1:
        return "must not be empty"
    reason: str = error["msg"]
    return reason.removeprefix("Value error, ")


async def _http_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    code, pattern = HTTP_ERRORS.get(error.status_code, (None, ""))
    message = str(error.detail)
    if pattern and message == HTTPStatus(error.status_code).phrase:
        message = pattern.format(method=request.method, path=request.scope["path"])
    if error.status_code == HTTPStatus.BAD_REQUEST and message == UNREADABLE_BODY:
        code, message = (
            "invalid_json",
            "the body is no valid JSON: it holds what cannot be read, such as a huge number or text that is not UTF-8",
        )
    info = ErrorInfo(message=message, type="invalid_request_error", code=code)
    return error_response(error.status_code, info, error.headers)


def foremost(errors: Sequence[Any], body: Any) -> Any:
    """Returns the error to report for a body: the deepest one, since it is from the intended union alternative."""
    return max(errors, key=lambda each: len(_path_of(each, body)))


def _path_of(error: Mapping[str, Any], body: Any) -> str:
    if error["loc"][:1] in (("query",), ("path",)):
        return str(error["loc"][1])
    return json_path(error["loc"][1:], body, of_missing=error["type"] == "missing")


def json_path(location: tuple[Any, ...], body: Any, *, of_missing: bool = False) -> str:
    """Returns pydantic's location as a path into the body; `of_missing`: its last part names a missing field."""
    return ".".join(str(part) for part in path_parts(location, body, of_missing=of_missing))


def path_parts(location: tuple[Any, ...], body: Any, *, of_missing: bool = False) -> list[Any]:
    """Returns the keys and indices of the path, without the names of the union members that pydantic tried."""
    path: list[Any] = []
    for depth, part in enumerate(location):
        inside_list = isinstance(body, list) and isinstance(part, int) and part < len(body)
        inside_dict = isinstance(body, dict) and part in body
        missing = of_missing and isinstance(body, dict) and depth == len(location) - 1
        if inside_list or inside_dict:
            body = body[part]
        elif not missing:
            continue
        path.append(part)
    return path


def _cut(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def error_response(status: int, info: ErrorInfo, headers: Mapping[str, str] | None = None) -> Response:
    """Returns the response with an error as its body."""
    # Both may contain a client's text, up to megabytes.
    info = info.model_copy(update={"message": _cut(info.message), "param": info.param and _cut(info.param)})
    return ErrorAnswer(status, info, headers)


class ErrorAnswer(Response):
    """An error in the shape of the API whose path was requested: Anthropic's, or OpenAI's."""

    def __init__(self, status: int, info: ErrorInfo, headers: Mapping[str, str] | None) -> None:
        super().__init__(_encoded(ErrorResponse(error=info)), status, headers, media_type="application/json")
        self._info = info

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        if scope["path"].endswith(MESSAGES_PATHS):
            request_id = getattr(scope.get("state", {}).get("record"), "request_id", None)
            self.body = _encoded(MessagesError.of(self.status_code, self._info, request_id))
            self.headers["Content-Length"] = str(len(self.body))
        await super().__call__(scope, receive, send)


def _encoded(body: BaseModel) -> bytes:
    # ASCII only: a field's name may contain half a surrogate pair, which UTF-8 cannot encode.
    return json.dumps(body.model_dump()).encode()
