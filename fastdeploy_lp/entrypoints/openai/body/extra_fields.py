"""Support for bodies with unknown fields, for clients that cannot omit them."""

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

from fastdeploy_lp.entrypoints.openai.body.shape import Handler
from fastdeploy_lp.entrypoints.openai.errors import path_parts
from fastdeploy_lp.entrypoints.openai.middleware.request_record import record_of

logger = logging.getLogger(__name__)

# Bounds the log, since clients choose the names.
MAX_WARNINGS = 100


class ExtraFields:
    """Removal of unknown fields from bodies on one server's routes, with one warning per name."""

    def __init__(self) -> None:
        self._warned: set[str] = set()

    def route_class(self, bounded: type[APIRoute]) -> type[APIRoute]:
        """Returns a subclass of `bounded`, a class of `bounded_route`, that drops unknown fields."""
        extra_fields = self

        class LenientRoute(bounded):  # type: ignore[valid-type,misc]
            """A route that drops unknown fields before it answers."""

            def get_route_handler(self) -> Handler:
                strict = super().get_route_handler()

                async def handle(request: Request) -> Response:
                    return await extra_fields.handle(strict, request)

                return handle

        return LenientRoute

    async def handle(self, strict: Handler, request: Request) -> Response:
        """Returns the answer of `strict`; if the body has unknown fields, retries without them."""
        try:
            return await strict(request)
        except RequestValidationError as error:
            work = partial(self._rest, error)
            body = await asyncio.to_thread(work) if record_of(request).heavy else work()
            if body is None:
                raise
        # At least one field less per call, so that the recursion ends.
        return await self.handle(strict, Request(request.scope, _replaying(body, request.receive)))

    def _rest(self, error: RequestValidationError) -> bytes | None:
        """Returns the body without its unknown fields, None if it has none; raises `error` as `_without` does."""
        extra = _extra_fields(error)
        return self._without(extra, error) if extra else None

    def _without(self, extra: list[list[Any]], error: RequestValidationError) -> bytes:
        """Returns the body without these fields, as JSON; raises `error` if it is nested too deeply to be encoded."""
        body = error.body
        for *parents, name in extra:
            place = body
            for part in parents:
                place = place[part]
            # Several alternatives of a union may reject the same field.
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
    """Returns the paths of the unknown fields, all computed before the first is dropped."""
    unknown = [each["loc"][1:] for each in error.errors() if each["type"] == "extra_forbidden"]
    return [path_parts(location, error.body) for location in unknown]


def _replaying(body: bytes, receive: Receive) -> Receive:
    """Returns a `receive` that yields the body, then the client's further messages (its disconnect)."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return waiting.pop() if waiting else await receive()

    return replay
