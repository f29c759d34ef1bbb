"""The response that streams server-sent events: their encoding and writing, and detection of clients that do not read.

Time spent here is taken from the model.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Protocol

import msgspec
from prometheus_client import CollectorRegistry, Counter
from pydantic import BaseModel
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fastdeploy_lp.engine.client.generation import Generation
from fastdeploy_lp.engine.client.work import News
from fastdeploy_lp.engine.metrics import PREFIX
from fastdeploy_lp.entrypoints.openai.errors import describe
from fastdeploy_lp.entrypoints.openai.listener.connections import ABORT_EXTENSION, WRITE_EXTENSION
from fastdeploy_lp.entrypoints.openai.protocol.error import ErrorResponse
from fastdeploy_lp.entrypoints.openai.serving import unless_disconnected
from fastdeploy_lp.request.outputs import CompletionDelta

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.5


class WatchedStream(Protocol):
    """A stream that is being sent to a client."""

    @property
    def blocked_since(self) -> float | None:
        """Time since which the client has read nothing, on the monotonic clock; None while it reads."""

    @property
    def unread_tokens(self) -> int:
        """Number of tokens that the client has not read."""

    @property
    def name(self) -> str:
        """The request's id."""

    def drop(self) -> None:
        """Ends the stream and its request."""


class StreamWatch:
    """Ends streams that are blocked for longer than `timeout` seconds, or with more than `max_unread` tokens waiting.

    Checks twice a second, only while streams exist. `timeout` 0 means no limit.
    """

    def __init__(
        self, timeout: float, max_unread: int, ended: Counter, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._timeout = timeout
        self._max_unread = max_unread
        self._ended = ended
        self._clock = clock
        self._streams: set[WatchedStream] = set()
        self._next_look: asyncio.TimerHandle | None = None

    def add(self, stream: WatchedStream) -> None:
        """Starts watching a stream."""
        self._streams.add(stream)
        if self._next_look is None:
            self._plan_look()

    def remove(self, stream: WatchedStream) -> None:
        """Stops watching a stream."""
        self._streams.discard(stream)
        if not self._streams and self._next_look is not None:
            self._next_look.cancel()
            self._next_look = None

    def look(self) -> None:
        """Ends the streams that exceed a limit."""
        now = self._clock()
        for stream in list(self._streams):
            if stream.blocked_since is None:
                continue
            seconds, tokens = now - stream.blocked_since, stream.unread_tokens
            if tokens > self._max_unread or 0 < self._timeout < seconds:
                self._streams.discard(stream)
                self._ended.inc()
                logger.warning(
                    "request %s ended: its client has read nothing for %.1f s, and %d tokens wait for it",
                    stream.name,
                    seconds,
                    tokens,
                )
                stream.drop()

    def _plan_look(self) -> None:
        self._next_look = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look_again)

    def _look_again(self) -> None:
        self._next_look = None
        self.look()
        if self._streams:
            self._plan_look()


def stalled_streams(registry: CollectorRegistry) -> Counter:
    """Returns the counter of `StreamWatch`, registered in the server's metrics."""
    return Counter(
        f"{PREFIX}stream_stalled", "Streams that were ended because their clients did not read", registry=registry
    )


Write = Callable[[bytes], bool]
Encode = Callable[[int, CompletionDelta], bytes]
"""Returns the events of a delta of the request at this place; empty while the delta has to wait."""


# Line ends of Unicode, which JSON leaves in texts. A client that splits lines as Python's `splitlines` does, such as
# httpx's `iter_lines`, would cut an event there.
LINE_ENDS = {end.encode(): json.dumps(end)[1:-1].encode() for end in ("\x85", "\u2028", "\u2029")}


def in_whole_lines(events: bytes) -> bytes:
    """Returns events with the line ends in their texts as JSON escapes."""
    if not events.isascii():
        for end, escape in LINE_ENDS.items():
            events = events.replace(end, escape)
    return events


def _never(_: bytes) -> bool:
    """Writes nothing: on other servers events are sent."""
    return False


class EventWriter:
    """Writes the events of one stream, whole ones at a time.

    send: of the application. write: see the method, and `WRITE_EXTENSION`. blocked_since: time since which the client
    has not read, on the monotonic clock; None while it reads. is_lost: True once sending has failed.
    """

    def __init__(self, send: Send, write: Write | None = None) -> None:
        self.blocked_since: float | None = None
        self.is_lost = False
        self._write = write or _never
        self._send = send

    def write(self, events: bytes) -> bool:
        """Writes events at once; returns False, and writes nothing, if they must be sent."""
        return self._write(in_whole_lines(events))

    async def send(self, events: bytes) -> None:
        """Sends events; waits while the client does not read."""
        if events:
            await self._pass_on(in_whole_lines(events), more=True)

    async def send_deltas(self, generations: Sequence[Generation], encode: Encode) -> None:
        """Sends the events of all deltas as they arrive, then closes the requests.

        Raises the first error of a request or of `encode`, which concerns no other stream.
        """
        try:
            await _Relay(generations, encode, self).run()
        finally:
            for each in generations:
                each.close()

    async def end(self) -> None:
        """Ends the answer."""
        await self._pass_on(b"", more=False)

    async def _pass_on(self, events: bytes, *, more: bool) -> None:
        self.blocked_since = time.monotonic()
        try:
            await self._send({"type": "http.response.body", "body": events, "more_body": more})
        except Exception:
            self.is_lost = True
            raise
        self.blocked_since = None


class _Relay:
    """Passes deltas from the requests of one stream to its connection, in their order.

    The engine's pass over a step writes a stream's events at once. When the connection takes no more, the stream's task
    sends them, and takes later deltas too, until none is left: they wait as tokens in their requests.
    """

    def __init__(self, generations: Sequence[Generation], encode: Encode, writer: EventWriter) -> None:
        self._generations = generations
        self._encode = encode
        self._writer = writer
        self._news = News()
        self._open = set(range(len(generations)))
        self._in_pass = True
        self._behind: dict[int, None] = {}
        self._unsent = b""
        self._error: Exception | None = None

    async def run(self) -> None:
        """Returns after the last delta of all requests; raises the first error."""
        for place, generation in enumerate(self._generations):
            generation.listen(partial(self._on_news, place))
            # Earlier deltas.
            self._on_news(place)
        while self._open or self._unsent:
            await self._news.wait()
            if self._error is not None:
                raise self._error
            await self._catch_up()

    def _on_news(self, place: int) -> None:
        if not self._in_pass:
            self._behind[place] = None
            self._news.arrive()
            return
        try:
            events = self._take(place)
            if not events or self._writer.write(events):
                if not self._open:
                    self._news.arrive()
                return
            self._unsent = events
        except Exception as error:  # noqa: BLE001 - the stream's task raises it; the step's other streams go on
            self._error = error
        self._in_pass = False
        self._news.arrive()

    async def _catch_up(self) -> None:
        events, self._unsent = self._unsent, b""
        await self._writer.send(events)
        while self._behind:
            place = next(iter(self._behind))
            del self._behind[place]
            await self._writer.send(self._take(place))
        self._in_pass = True

    def _take(self, place: int) -> bytes:
        generation = self._generations[place]
        events = [self._encode(place, delta) for delta in generation.take_deltas()]
        if generation.is_told:
            self._open.discard(place)
        return events[0] if len(events) == 1 else b"".join(events)


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
