"""Writing of a stream's events: in the engine's pass over a step while the connection takes them, else in a task."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

from starlette.types import Send

from fastdeploy_lp.engine.client.generation import Generation
from fastdeploy_lp.engine.client.work import News
from fastdeploy_lp.request.outputs import CompletionDelta

Write = Callable[[bytes], bool]
Encode = Callable[[int, CompletionDelta], bytes]
"""Returns the events of a delta of the request at this place; empty while the delta has to wait."""


def _never(_: bytes) -> bool:
    """Writes nothing: on other servers events are sent."""
    return False


class EventWriter:
    """Writes the events of one stream, whole ones at a time.

    send: of the application. write: writes at once, or returns False and writes nothing if the events must be sent; see
    `WRITE_EXTENSION`. blocked_since: time since which the client has not read, on the monotonic clock; None while it
    reads. is_lost: True once sending has failed.
    """

    def __init__(self, send: Send, write: Write | None = None) -> None:
        self.blocked_since: float | None = None
        self.is_lost = False
        self.write = write or _never
        self._send = send

    async def send(self, events: bytes) -> None:
        """Sends events; waits while the client does not read."""
        if events:
            await self._pass_on(events, more=True)

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
