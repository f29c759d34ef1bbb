"""The bounds on a JSON body's size and form, whatever its fields mean."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from fastdeploy_lp.engine.errors import InvalidRequestError
from fastdeploy_lp.entrypoints import strict_json
from fastdeploy_lp.entrypoints.openai.bodies_in_flight import release_body
from fastdeploy_lp.entrypoints.openai.disconnect import CLIENT_CLOSED_REQUEST
from fastdeploy_lp.request_limits import MAX_BODY_DEPTH, MAX_BODY_MEMBERS, MAX_BODY_VALUES

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class BoundedRoute(APIRoute):
    """Refuses bodies that would cost much more to look at than they cost to send, and those with a key twice."""

    def get_route_handler(self) -> Handler:
        """The handler of the route, behind the check."""
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            strict = _StrictRequest(request.scope, request.receive)
            try:
                require_modest(await strict.whole_body())
            except ClientDisconnect:
                return Response(status_code=CLIENT_CLOSED_REQUEST)
            try:
                return await handler(strict)
            except _KeyTwiceError as error:
                raise InvalidRequestError(error.path, error.detail) from None

        return handle


class _StrictRequest(Request):
    """A request whose body is parsed once, by a parser that notices a key that an object has twice.

    Its bytes are dropped then.
    """

    async def whole_body(self) -> bytes:
        """All bytes; for as long as they are not parsed."""
        return await super().body()

    async def body(self) -> bytes:
        """One byte, or none: the framework asks whether there are any, and would keep all until the answer is sent."""
        return (await super().body())[:1]

    async def json(self) -> Any:
        """The body; raises _KeyTwiceError, or what `json.loads` raises."""
        try:
            return strict_json.load(await super().body())
        except strict_json.DuplicateKeyError as error:
            raise _KeyTwiceError(error) from None
        finally:
            self._body = await self.body()
            release_body(self.scope)


class _KeyTwiceError(HTTPException):
    """An exception that FastAPI passes on from where it reads the body."""

    def __init__(self, error: strict_json.DuplicateKeyError) -> None:
        super().__init__(400, error.reason)
        self.path = error.path


def require_modest(body: bytes) -> None:
    """Raise InvalidRequestError that names the limit; what is no JSON at all is left to whoever reads it."""
    # More than there can be of each, at the speed of memory: strings may hold the same characters.
    opened = body.count(b"{") + body.count(b"[")
    members = body.count(b":")
    values = opened + members + body.count(b",") + 1
    if opened <= MAX_BODY_DEPTH and members <= MAX_BODY_MEMBERS and values <= MAX_BODY_VALUES:
        return
    try:
        content = json.loads(body)
    except RecursionError:
        raise InvalidRequestError(None, _too_deep()) from None
    except ValueError:
        return
    _Count().take(content)


class _Count:
    """Walks over a parsed body, one level of nesting after the other, and stops at the first limit."""

    def __init__(self) -> None:
        self._values = 0
        self._members = 0

    def take(self, content: Any) -> None:
        level, depth = [content], 0
        while level:
            level = [each for value in level if isinstance(value, (dict, list)) for each in self._inside(value)]
            depth += 1
            if depth > MAX_BODY_DEPTH and level:
                raise InvalidRequestError(None, _too_deep())

    def _inside(self, value: dict[str, Any] | list[Any]) -> list[Any]:
        self._values += len(value)
        if isinstance(value, dict):
            self._members += len(value)
        if self._members > MAX_BODY_MEMBERS:
            raise InvalidRequestError(None, f"the body has more than {MAX_BODY_MEMBERS} members of objects")
        if self._values > MAX_BODY_VALUES:
            raise InvalidRequestError(None, f"the body has more than {MAX_BODY_VALUES} values")
        return list(value.values()) if isinstance(value, dict) else value


def _too_deep() -> str:
    return f"the body is nested more than {MAX_BODY_DEPTH} levels deep"
