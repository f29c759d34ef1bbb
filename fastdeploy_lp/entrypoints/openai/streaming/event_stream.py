"""Encoding and writing of server-sent events. Time spent here is taken from the model."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

import msgspec
from pydantic import BaseModel
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fastdeploy_lp.engine.client.generation import Generation
from fastdeploy_lp.entrypoints.openai.disconnect import unless_disconnected
from fastdeploy_lp.entrypoints.openai.listener.connections import ABORT_EXTENSION
from fastdeploy_lp.entrypoints.openai.streaming.stream_watch import StreamWatch

DONE = b"data: [DONE]\n\n"
PLACEHOLDER = "\N{OBJECT REPLACEMENT CHARACTER}text\N{OBJECT REPLACEMENT CHARACTER}"


class EventStream(Response):
    """Response that writes the whole events of `events` at once, and closes `events` if the client disconnects.

    generations: the requests whose tokens it reports. watch: ends the stream if a connected client does not read.
    """

    media_type = "text/event-stream"

    def __init__(
        self, events: AsyncGenerator[bytes, None], generations: Sequence[Generation], watch: StreamWatch
    ) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers({"Cache-Control": "no-cache"})
        self.blocked_since: float | None = None
        self._events = events
        self._generations = generations
        self._watch = watch
        self._abort: Callable[[], None] | None = None

    @property
    def unread_tokens(self) -> int:
        """Number of tokens that the client has not read."""
        return sum(generation.num_untold_tokens for generation in self._generations)

    @property
    def name(self) -> str:
        """The request's id."""
        return self._generations[0].request_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        self._abort = scope.get("extensions", {}).get(ABORT_EXTENSION)
        try:
            async with aclosing(self._events):
                await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
                self._watch.add(self)
                try:
                    await unless_disconnected(self._write(send), receive)
                finally:
                    self._watch.remove(self)
        finally:
            # A generator that never started does not close them: the connection may already be closed.
            for generation in self._generations:
                generation.close()

    def drop(self) -> None:
        """Aborts the requests, and closes the connection if possible."""
        for generation in self._generations:
            generation.abort()
        if self._abort is not None:
            self._abort()

    async def _write(self, send: Send) -> None:
        async for events in self._events:
            self.blocked_since = time.monotonic()
            await send({"type": "http.response.body", "body": events, "more_body": True})
            self.blocked_since = None
        self.blocked_since = time.monotonic()
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class TextEvent:
    """Encoder of events that differ in one text only: the rest is encoded once.

    build: returns the event with the given text, which must occur in it once.
    """

    def __init__(self, build: Callable[[str], bytes]) -> None:
        self._head, self._tail = build(PLACEHOLDER).split(msgspec.json.encode(PLACEHOLDER))

    def __call__(self, text: str) -> bytes:
        """Returns the event with this text."""
        return b"".join((self._head, msgspec.json.encode(text), self._tail))


def server_sent_event(body: BaseModel) -> bytes:
    """Returns one encoded event."""
    return b"data: " + body.model_dump_json().encode() + b"\n\n"
