"""Every failure as an OpenAI error body with the right status."""

from __future__ import annotations

import logging
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from fastdeploy_lp.engine.errors import EngineDeadError, InvalidRequestError, RequestFailedError
from fastdeploy_lp.entrypoints.openai.protocol import ErrorInfo, ErrorResponse

logger = logging.getLogger(__name__)


class ModelNotFoundError(Exception):
    """The request names a model that is not served here."""

    def __init__(self, asked: str, served: str) -> None:
        super().__init__(f"the model {asked!r} does not exist; this server has {served!r}")


def describe(error: Exception) -> tuple[int, ErrorInfo]:
    """The HTTP status and error body for an exception of a request."""
    if isinstance(error, InvalidRequestError):
        return 400, ErrorInfo(message=str(error), type="invalid_request_error", param=error.param, code=error.code)
    if isinstance(error, ModelNotFoundError):
        return 404, ErrorInfo(message=str(error), type="invalid_request_error", param="model", code="model_not_found")
    if isinstance(error, EngineDeadError):
        return 503, ErrorInfo(message=f"the engine is down: {error}", type="server_error", code="engine_down")
    if isinstance(error, RequestFailedError):
        return 500, ErrorInfo(message=str(error), type="server_error", code="request_failed")
    logger.error("unexpected error", exc_info=error)
    return 500, ErrorInfo(message="internal error; the server's log has the cause", type="server_error")


def install(app: FastAPI) -> None:
    """Answer every exception of the app's routes in OpenAI's shape."""

    async def answer(_: Request, error: Exception) -> JSONResponse:
        return _response(*describe(error))

    for kind in (InvalidRequestError, ModelNotFoundError, EngineDeadError, RequestFailedError, Exception):
        app.add_exception_handler(kind, answer)
    app.add_exception_handler(RequestValidationError, _invalid_body)
    app.add_exception_handler(HTTPException, _http_error)


async def _invalid_body(_: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, RequestValidationError):
        raise error
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        reason = first.get("ctx", {}).get("error", "malformed")
        info = ErrorInfo(
            message=f"the body is no valid JSON: {reason}", type="invalid_request_error", code="invalid_json"
        )
        return _response(400, info)
    if isinstance(error.body, bytes):
        message = "the body is not read as JSON: send the header Content-Type: application/json"
        return _response(400, ErrorInfo(message=message, type="invalid_request_error", code="invalid_content_type"))
    param = json_path(first["loc"][1:], error.body)
    reason = first["msg"].removeprefix("Value error, ")
    code = "missing_required_parameter" if first["type"] == "missing" else "invalid_value"
    if first["type"] == "extra_forbidden":
        reason, code = "this field is unknown or not supported yet", "unknown_parameter"
    message = f"{param}: {reason}" if param else reason
    return _response(400, ErrorInfo(message=message, type="invalid_request_error", param=param or None, code=code))


async def _http_error(_: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, HTTPException):
        raise error
    info = ErrorInfo(message=str(error.detail), type="invalid_request_error", code=None)
    return _response(error.status_code, info)


def json_path(location: tuple[Any, ...], body: Any) -> str:
    """pydantic's location as a path into the body, without the names of the union members it tried on the way."""
    path: list[str] = []
    for depth, part in enumerate(location):
        inside_list = isinstance(body, list) and isinstance(part, int) and part < len(body)
        inside_dict = isinstance(body, dict) and part in body
        missing = isinstance(body, dict) and depth == len(location) - 1
        if inside_list or inside_dict:
            body = body[part]
        elif not missing:
            continue
        path.append(str(part))
    return ".".join(path)


def _response(status: int, info: ErrorInfo) -> JSONResponse:
    return JSONResponse(ErrorResponse(error=info).model_dump(), status)
