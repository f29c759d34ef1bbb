"""Encoding of server-sent events, and the response that streams them. Time spent here is taken from the model."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import msgspec
from pydantic import BaseModel
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fastdeploy_lp.engine.client.generation import Generation
from fastdeploy_lp.entrypoints.openai.disconnect import unless_disconnected
from fastdeploy_lp.entrypoints.openai.errors import describe
from fastdeploy_lp.entrypoints.openai.listener.connections import ABORT_EXTENSION, WRITE_EXTENSION
from fastdeploy_lp.entrypoints.openai.protocol.error import ErrorResponse
from fastdeploy_lp.entrypoints.openai.streaming.event_writer import EventWriter
from fastdeploy_lp.entrypoints.openai.streaming.stream_watch import StreamWatch

DONE = b"data: [DONE]\n\n"
PLACEHOLDER = "\N{OBJECT REPLACEMENT CHARACTER}text\N{OBJECT REPLACEMENT CHARACTER}"


class EventStream(Response):
    """Response written by `tell`; a client's disconnect cancels `tell` and closes the requests.

    failed: returns the last events of a stream that failed; the status line is sent, so that they are the only
    way left to report the error. generations: the requests whose tokens it reports. watch: ends the stream if a
    connected client does not read.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        tell: Callable[[EventWriter], Awaitable[None]],
        failed: Callable[[Exception], bytes],
        generations: Sequence[Generation],
        watch: StreamWatch,
    ) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers({"Cache-Control": "no-cache"})
        self._tell = tell
        self._failed = failed
        self._generations = generations
        self._watch = watch
        self._abort: Callable[[], None] | None = None
        self._writer: EventWriter | None = None

    @property
    def blocked_since(self) -> float | None:
        """See `EventWriter`."""
        return None if self._writer is None else self._writer.blocked_since

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
        extensions = scope.get("extensions", {})
        self._abort = extensions.get(ABORT_EXTENSION)
        self._writer = writer = EventWriter(send, extensions.get(WRITE_EXTENSION))
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            self._watch.add(self)
            try:
                await unless_disconnected(self._write(writer), receive)
            finally:
                self._watch.remove(self)
        finally:
            self._close()

    def drop(self) -> None:
        """Aborts the requests, and closes the connection if possible."""
        for generation in self._generations:
            generation.abort()
        if self._abort is not None:
            self._abort()

    async def _write(self, writer: EventWriter) -> None:
        try:
            await self._tell(writer)
        except Exception as error:
            if writer.is_lost:
                raise
            self._close()
            await writer.send(self._failed(error))
        await writer.end()

    def _close(self) -> None:
        for generation in self._generations:
            generation.close()


# Bound once: `msgspec.json.encode` looks up and makes an encoder for every text.
_encode_text = msgspec.json.Encoder().encode


class TextEvent:
    """Encoder of events that differ in one text only: the rest is encoded once.

    build: returns the event with the given text, which must occur in it once.
    """

    def __init__(self, build: Callable[[str], bytes]) -> None:
        self._head, self._tail = build(PLACEHOLDER).split(_encode_text(PLACEHOLDER))

    def __call__(self, text: str) -> bytes:
        """Returns the event with this text."""
        return b"".join((self._head, _encode_text(text), self._tail))


def server_sent_event(body: BaseModel) -> bytes:
    """Returns one encoded event."""
    return b"data: " + body.model_dump_json().encode() + b"\n\n"


def failed_events(error: Exception) -> bytes:
    """Returns the last events of an OpenAI stream that cannot go on."""
    return server_sent_event(ErrorResponse(error=describe(error)[1])) + DONE
