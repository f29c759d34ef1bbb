"""JSON bodies: a parser that refuses duplicate keys, bounds on size and shape, and the routes that read them.

All are independent of the fields of a body.
"""

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
from fastdeploy_lp.entrypoints import stepped_json
from fastdeploy_lp.entrypoints.openai.errors import CLIENT_CLOSED_REQUEST, foremost
from fastdeploy_lp.entrypoints.openai.listener.bounds import release_body
from fastdeploy_lp.entrypoints.openai.middleware.request_record import record_of
from fastdeploy_lp.entrypoints.openai.serving import while_connected
from fastdeploy_lp.request.limits import MAX_BODY_CONTAINERS, MAX_BODY_DEPTH, MAX_BODY_MEMBERS, MAX_BODY_VALUES


class DuplicateKeyError(ValueError):
    """An object has a duplicate key; `path` is the JSON path of its second occurrence."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path}: this key is given twice")
        self.path = path
        self.reason = "this key is given twice"


def load_strict(text: str | bytes) -> Any:
    """Returns the parsed text; raises DuplicateKeyError, or the exceptions of `json.loads`."""
    try:
        return json.loads(text, object_pairs_hook=members_once)
    except KeyTwiceError:
        raise duplicate_key(text) from None


def duplicate_key(text: str | bytes) -> DuplicateKeyError:
    """Returns the error for a text with a duplicate key; parses the text again to find the key's path."""
    return DuplicateKeyError(_path_of_duplicate(json.loads(text, object_pairs_hook=_Pairs)))


class KeyTwiceError(Exception):
    """An object in the text has a duplicate key, at an unknown path."""


class _Pairs(list[tuple[str, Any]]):
    """The members of an object as written, duplicates included."""


def members_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns the members as a dict; raises KeyTwiceError for a duplicate key."""
    members = dict(pairs)
    if len(members) != len(pairs):
        raise KeyTwiceError
    return members


def _path_of_duplicate(content: Any) -> str:
    """Returns the path of the first duplicate key."""
    waiting: list[tuple[list[str], Any]] = [([], content)]
    while waiting:
        path, value = waiting.pop()
        seen: set[str] = set()
        inside: list[tuple[list[str], Any]] = []
        for key, member in value if isinstance(value, _Pairs) else enumerate(value):
            here = [*path, str(key)]
            if isinstance(value, _Pairs):
                if here[-1] in seen:
                    return ".".join(here)
                seen.add(here[-1])
            if isinstance(member, list):
                inside.append((here, member))
        waiting += reversed(inside)
    raise ValueError("no object has a key twice")


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
                except _RefusedKeyError as error:
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
        """Returns the parsed body; raises _RefusedKeyError, or the errors of `json.loads`."""
        if isinstance(self.read, Exception):
            raise self.read
        if self.read is not None:
            return self.read
        try:
            return load_strict(await super().body())
        except DuplicateKeyError as error:
            raise _RefusedKeyError(error) from None
        finally:
            self.drop_body()


class _RefusedKeyError(HTTPException):
    """A duplicate key; an HTTPException because FastAPI propagates it unchanged while it reads the body."""

    def __init__(self, error: DuplicateKeyError) -> None:
        super().__init__(400, error.reason)
        self.path = error.path


def _read(body: bytes, validate: Read, *, all_errors: bool) -> Any:
    """Returns the validated body, or the exception of the parser.

    Raises InvalidRequestError that names the exceeded limit, and RequestValidationError.
    """
    bounds = stepped_json.Bounds(MAX_BODY_VALUES, MAX_BODY_MEMBERS, MAX_BODY_CONTAINERS, MAX_BODY_DEPTH)
    try:
        content = stepped_json.load(body, bounds, members_once)
    except stepped_json.TooMuchError as error:
        raise InvalidRequestError(None, TOO_MUCH[str(error)]) from None
    except KeyTwiceError:
        return _RefusedKeyError(duplicate_key(body))
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
