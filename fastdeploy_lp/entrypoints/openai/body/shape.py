"""JSON bodies: bounds on size and shape, independent of their fields, and the routes that read them."""

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

from fastdeploy_lp.engine.client.engine import Engine
from fastdeploy_lp.engine.errors import InvalidRequestError
from fastdeploy_lp.entrypoints import stepped_json, strict_json
from fastdeploy_lp.entrypoints.openai.disconnect import CLIENT_CLOSED_REQUEST, while_connected
from fastdeploy_lp.entrypoints.openai.errors import foremost
from fastdeploy_lp.entrypoints.openai.listener.bounds import release_body
from fastdeploy_lp.entrypoints.openai.middleware.request_record import record_of
from fastdeploy_lp.request.limits import MAX_BODY_CONTAINERS, MAX_BODY_DEPTH, MAX_BODY_MEMBERS, MAX_BODY_VALUES

Handler = Callable[[Request], Coroutine[Any, Any, Response]]
Read = Callable[[Any], tuple[Any, list[Any]]]

# Bytes of a body that takes a few milliseconds at most to parse, so that it needs no thread.
LIGHT_BODY = 8192
TOO_MUCH = {
    "values": f"the body has more than {MAX_BODY_VALUES} values",
    "members": f"the body has more than {MAX_BODY_MEMBERS} members of objects",
    "containers": f"the body has more than {MAX_BODY_CONTAINERS} lists and objects",
    "depth": f"the body is nested more than {MAX_BODY_DEPTH} levels deep",
}


def bounded_route(engine: Engine, *, takes_room: bool = False, all_errors: bool = False) -> type[APIRoute]:
    """Returns a route class that refuses bodies far costlier to process than to send, and bodies with duplicate keys.

    Large bodies are parsed and validated by `engine.host`. takes_room: refuse a request before its body is read
    when the engine has no room for a sequence. all_errors: report all errors of a large body, not only the
    foremost.
    """

    class BoundedRoute(APIRoute):
        """A route that checks its requests' bodies."""

        def get_route_handler(self) -> Handler:
            """Returns the route's handler, preceded by the checks."""
            handler, field = super().get_route_handler(), self.body_field

            async def handle(request: Request) -> Response:
                record = record_of(request)
                if takes_room:
                    engine.require_started()
                    engine.require_room(1, record.client)
                strict = _StrictRequest(request.scope, request.receive)
                try:
                    body = await strict.whole_body()
                    record.heavy = len(body) > LIGHT_BODY
                    if not record.heavy:
                        _require_shallow(body)
                    elif field is not None and _is_json(request):
                        validate = partial(field.validate, values={}, loc=("body",))
                        work = partial(_read, body, validate, all_errors=all_errors)
                        strict.read = await while_connected(engine.host.run(work, record.client), request.receive)
                        strict.drop_body()
                        del body, work
                    return await handler(strict)
                except ClientDisconnect:
                    return Response(status_code=CLIENT_CLOSED_REQUEST)
                except _KeyTwiceError as error:
                    raise InvalidRequestError(error.path, error.detail) from None

            return handle

    return BoundedRoute


class _StrictRequest(Request):
    """A request whose body is parsed once, by a parser that rejects duplicate keys; its bytes are then dropped.

    read: the value that `json` returns, or the exception that it raises, once known.
    """

    read: Any = None

    async def whole_body(self) -> bytes:
        """Returns all bytes; only valid until they are parsed."""
        return await super().body()

    async def body(self) -> bytes:
        """Returns one byte or none: the framework only tests for a body, but would keep it until the answer is sent."""
        return (await super().body())[:1]

    def drop_body(self) -> None:
        """Frees the memory of the parsed bytes."""
        self._body = self._body[:1]
        release_body(self.scope)

    async def json(self) -> Any:
        """Returns the parsed body; raises _KeyTwiceError, or the errors of `json.loads`."""
        if isinstance(self.read, Exception):
            raise self.read
        if self.read is not None:
            return self.read
        try:
            return strict_json.load(await super().body())
        except strict_json.DuplicateKeyError as error:
            raise _KeyTwiceError(error) from None
        finally:
            self.drop_body()


class _KeyTwiceError(HTTPException):
    """A duplicate key; an HTTPException because FastAPI propagates it unchanged while it reads the body."""

    def __init__(self, error: strict_json.DuplicateKeyError) -> None:
        super().__init__(400, error.reason)
        self.path = error.path


def _read(body: bytes, validate: Read, *, all_errors: bool) -> Any:
    """Returns the validated body, or the exception of the parser.

    Raises InvalidRequestError that names the exceeded limit, and RequestValidationError.
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
    """Returns True if FastAPI parses the body."""
    message = email.message.Message()
    message["content-type"] = request.headers.get("content-type", "")
    subtype = message.get_content_subtype()
    return message.get_content_maintype() == "application" and (subtype == "json" or subtype.endswith("+json"))


def _require_shallow(body: bytes) -> None:
    """Raises InvalidRequestError for a light body of too many levels; ignores invalid JSON, which fails later."""
    # The number of values needs no check: it is below the number of bytes.
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
