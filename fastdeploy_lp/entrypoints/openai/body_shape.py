"""JSON bodies: bounds on their size and form, whatever their fields mean, and where they are read."""

from __future__ import annotations

import email.message
import json
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from fastdeploy_lp.engine.engine import Engine
from fastdeploy_lp.engine.errors import InvalidRequestError
from fastdeploy_lp.entrypoints import stepped_json, strict_json
from fastdeploy_lp.entrypoints.openai.disconnect import CLIENT_CLOSED_REQUEST, while_connected
from fastdeploy_lp.entrypoints.openai.errors import foremost
from fastdeploy_lp.entrypoints.openai.middleware.request_record import record_of
from fastdeploy_lp.request_limits import MAX_BODY_CONTAINERS, MAX_BODY_DEPTH, MAX_BODY_MEMBERS, MAX_BODY_VALUES

Handler = Callable[[Request], Coroutine[Any, Any, Response]]
Read = Callable[[Any], tuple[Any, list[Any]]]

# Bytes of a body whose work takes a few milliseconds at most, and so no thread.
LIGHT_BODY = 8192
TOO_MUCH = {
    "values": f"the body has more than {MAX_BODY_VALUES} values",
    "members": f"the body has more than {MAX_BODY_MEMBERS} members of objects",
    "containers": f"the body has more than {MAX_BODY_CONTAINERS} lists and objects",
    "depth": f"the body is nested more than {MAX_BODY_DEPTH} levels deep",
}


def bounded_route(engine: Engine, *, takes_room: bool = False, all_errors: bool = False) -> type[APIRoute]:
    """Routes that refuse bodies which cost much more than they cost to send, and those with a key twice.

    Large bodies are parsed and validated by `engine.host`. takes_room: a request is refused before its body is read
    when the engine has no room for a sequence. all_errors: a refusal of a large body has each of its mistakes, not
    only the one that is told.
    """

    class BoundedRoute(APIRoute):
        """Reads its requests' bodies."""

        def get_route_handler(self) -> Handler:
            """The handler of the route, after the checks."""
            handler, field = super().get_route_handler(), self.body_field

            async def handle(request: Request) -> Response:
                record = record_of(request)
                if takes_room:
                    engine.require_started()
                    engine.require_room(1, record.client)
                strict = _StrictRequest(request.scope, request.receive)
                try:
                    body = await strict.body()
                    record.heavy = len(body) > LIGHT_BODY
                    if not record.heavy:
                        _require_shallow(body)
                    elif field is not None and _is_json(request):
                        validate = partial(field.validate, values={}, loc=("body",))
                        work = partial(_read, body, validate, all_errors=all_errors)
                        strict.read = await while_connected(engine.host.run(work, record.client), request.receive)
                    return await handler(strict)
                except ClientDisconnect:
                    return Response(status_code=CLIENT_CLOSED_REQUEST)
                except _KeyTwiceError as error:
                    raise InvalidRequestError(error.path, error.detail) from None

            return handle

    return BoundedRoute


class _StrictRequest(Request):
    """A request whose body is parsed once, by a parser that notices a key that an object has twice.

    `read` is what `json` returns, or the exception that it raises, once that is known.
    """

    read: Any = None

    async def json(self) -> Any:
        """The body; raises _KeyTwiceError, or what `json.loads` raises."""
        if isinstance(self.read, Exception):
            raise self.read
        if self.read is not None:
            return self.read
        try:
            return strict_json.load(await self.body())
        except strict_json.DuplicateKeyError as error:
            raise _KeyTwiceError(error) from None


class _KeyTwiceError(HTTPException):
    """An exception that FastAPI passes on from where it reads the body."""

    def __init__(self, error: strict_json.DuplicateKeyError) -> None:
        super().__init__(400, error.reason)
        self.path = error.path


def _read(body: bytes, validate: Read, *, all_errors: bool) -> Any:
    """The validated body, or the exception with which parsing it ended.

    Raises InvalidRequestError that names the limit, and RequestValidationError.
    """
    bounds = stepped_json.Bounds(MAX_BODY_VALUES, MAX_BODY_MEMBERS, MAX_BODY_CONTAINERS, MAX_BODY_DEPTH)
    try:
        content = stepped_json.load(body, bounds)
    except stepped_json.TooMuchError as error:
        raise InvalidRequestError(None, TOO_MUCH[str(error)]) from None
    except strict_json.KeyTwiceError:
        return _KeyTwiceError(strict_json.duplicate_key(body))
    except RecursionError:
        raise InvalidRequestError(None, TOO_MUCH["depth"]) from None
    except ValueError as error:
        return error
    read, errors = validate(content)
    if errors:
        raise RequestValidationError(errors if all_errors else [foremost(errors, content)], body=content)
    return read


def _is_json(request: Request) -> bool:
    """Whether FastAPI parses the body."""
    message = email.message.Message()
    message["content-type"] = request.headers.get("content-type", "")
    subtype = message.get_content_subtype()
    return message.get_content_maintype() == "application" and (subtype == "json" or subtype.endswith("+json"))


def _require_shallow(body: bytes) -> None:
    """Raise InvalidRequestError for a light body of many levels; what is no JSON is left to whoever reads it."""
    # Its number of values needs no check: they are fewer than its bytes.
    if body.count(b"{") + body.count(b"[") <= MAX_BODY_DEPTH:
        return
    try:
        level = [json.loads(body)]
    except RecursionError:
        raise InvalidRequestError(None, TOO_MUCH["depth"]) from None
    except ValueError:
        return
    for _ in range(MAX_BODY_DEPTH):
        inside = (value for value in level if isinstance(value, (dict, list)))
        level = [each for value in inside for each in (value.values() if isinstance(value, dict) else value)]
    if level:
        raise InvalidRequestError(None, TOO_MUCH["depth"])
