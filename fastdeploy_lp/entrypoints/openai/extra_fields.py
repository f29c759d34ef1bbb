"""Bodies with fields that this server does not know, for clients that can not leave them out."""

from __future__ import annotations

import asyncio
import json
import logging
from functools import partial
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.types import Message, Receive

from fastdeploy_lp.entrypoints.openai.body_shape import Handler
from fastdeploy_lp.entrypoints.openai.errors import path_parts
from fastdeploy_lp.entrypoints.openai.middleware.request_record import record_of

logger = logging.getLogger(__name__)

# Clients choose the names: a log that follows them for ever would be theirs.
MAX_WARNINGS = 100


class ExtraFields:
    """Drops unknown fields of bodies on one server's routes, with one warning a name."""

    def __init__(self) -> None:
        self._warned: set[str] = set()

    def route_class(self, bounded: type[APIRoute]) -> type[APIRoute]:
        """The class of `bounded_route`, for a router whose bodies may have them."""
        extra_fields = self

        class LenientRoute(bounded):  # type: ignore[valid-type,misc]
            """Answers a body without its unknown fields."""

            def get_route_handler(self) -> Handler:
                strict = super().get_route_handler()

                async def handle(request: Request) -> Response:
                    return await extra_fields.handle(strict, request)

                return handle

        return LenientRoute

    async def handle(self, strict: Handler, request: Request) -> Response:
        """What `strict` answers to the body, or to what is left of it when that is all it objects to."""
        try:
            return await strict(request)
        except RequestValidationError as error:
            work = partial(self._rest, error)
            body = await asyncio.to_thread(work) if record_of(request).heavy else work()
            if body is None:
                raise
        # At least one field less: this comes to an end.
        return await self.handle(strict, Request(request.scope, _replaying(body, request.receive)))

    def _rest(self, error: RequestValidationError) -> bytes | None:
        """The body without its unknown fields; None if it has none, raises `error` as `_without` does."""
        extra = _extra_fields(error)
        return self._without(extra, error) if extra else None

    def _without(self, extra: list[list[Any]], error: RequestValidationError) -> bytes:
        """The body without these fields, as JSON; raises `error` if it is nested too deeply to be written."""
        body = error.body
        for *parents, name in extra:
            place = body
            for part in parents:
                place = place[part]
            # Alternatives of a union may object to the same field.
            place.pop(name, None)
            self._warn(str(name))
        try:
            return json.dumps(body).encode()
        except RecursionError:
            raise error from None

    def _warn(self, name: str) -> None:
        if name not in self._warned and len(self._warned) < MAX_WARNINGS:
            self._warned.add(name)
            logger.warning("the field %r of a request is unknown; it is ignored here and from now on", name[:100])


def _extra_fields(error: RequestValidationError) -> list[list[Any]]:
    """The paths of the fields that nobody knows; all of them are found before the first is dropped."""
    unknown = [each["loc"][1:] for each in error.errors() if each["type"] == "extra_forbidden"]
    return [path_parts(location, error.body) for location in unknown]


def _replaying(body: bytes, receive: Receive) -> Receive:
    """Gives the body, then what comes from the client, which is that it goes."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return waiting.pop() if waiting else await receive()

    return replay
