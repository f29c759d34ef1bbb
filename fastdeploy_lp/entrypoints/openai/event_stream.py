"""Server-sent events: how they are encoded and written. Every microsecond here is taken from the model."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import msgspec
from pydantic import BaseModel
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fastdeploy_lp.entrypoints.openai.disconnect import unless_disconnected

DONE = b"data: [DONE]\n\n"
PLACEHOLDER = "\N{OBJECT REPLACEMENT CHARACTER}text\N{OBJECT REPLACEMENT CHARACTER}"


class EventStream(Response):
    """Writes what `events` yields, whole events each, as it comes; ends `events` when the client goes."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None]) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers({"Cache-Control": "no-cache"})
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        del scope
        async with aclosing(self._events):
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await unless_disconnected(self._write(send), receive)

    async def _write(self, send: Send) -> None:
        async for events in self._events:
            await send({"type": "http.response.body", "body": events, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class TextEvent:
    """Events of one stream that differ in one text only: the rest is encoded once.

    build: the event with the given text, which must stand in it once.
    """

    def __init__(self, build: Callable[[str], bytes]) -> None:
        self._head, self._tail = build(PLACEHOLDER).split(msgspec.json.encode(PLACEHOLDER))

    def __call__(self, text: str) -> bytes:
        """The event with this text."""
        return b"".join((self._head, msgspec.json.encode(text), self._tail))


def server_sent_event(body: BaseModel) -> bytes:
    """One event."""
    return b"data: " + body.model_dump_json().encode() + b"\n\n"
