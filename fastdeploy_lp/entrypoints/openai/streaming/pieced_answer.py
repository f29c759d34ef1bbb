"""Answers of any size, encoded in short turns of the event loop and sent as the client reads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fastdeploy_lp.entrypoints.openai.json_pieces import Pieces
from fastdeploy_lp.entrypoints.openai.listener.connections import ABORT_EXTENSION
from fastdeploy_lp.entrypoints.openai.serving import unless_disconnected
from fastdeploy_lp.entrypoints.openai.streaming.event_stream import StreamWatch

# Limits of one turn of the loop; the first one reached ends it.
TURN_SECONDS = 0.001
TURN_BYTES = 1 << 16


class Parts:
    """A JSON value cut into parts of one turn each; `ended` once the last one is taken."""

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = iter(pieces)
        self.ended = False

    def take(self) -> bytes:
        """Returns the next part."""
        until, size, part = time.perf_counter() + TURN_SECONDS, 0, list[bytes]()
        for piece in self._pieces:
            part.append(piece)
            size += len(piece)
            if size >= TURN_BYTES or time.perf_counter() >= until:
                return b"".join(part)
        self.ended = True
        return b"".join(part)


class EncodingTurns:
    """Lets one long answer at a time encode its next part, then leaves the loop to others for the same time.

    Replaces threads: each time the loop waits for the interpreter's lock, an encoding thread keeps it for 5 ms, and
    several answers would keep it several times longer.
    """

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def take(self, parts: Parts) -> bytes:
        """Waits for the turn, and returns the next part."""
        async with self._turn:
            began = time.perf_counter()
            part = parts.take()
            await asyncio.sleep(time.perf_counter() - began)
        return part


class PiecedAnswer(Response):
    """A JSON body that is encoded while it is sent; a body that fits in one turn is sent whole.

    watch: closes the connection if the client does not read.
    """

    media_type = "application/json"

    def __init__(self, body: Pieces, name: str, turns: EncodingTurns, watch: StreamWatch) -> None:
        self.status_code = 200
        self.background = None
        self.blocked_since: float | None = None
        self.unread_tokens = 0
        self.name = name
        self._parts = Parts(body)
        self._turns = turns
        self._watch = watch
        self._abort: Callable[[], None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        self._abort = scope.get("extensions", {}).get(ABORT_EXTENSION)
        part = self._parts.take()
        self.init_headers({"Content-Length": str(len(part))} if self._parts.ended else {})
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        if self._parts.ended:
            await send({"type": "http.response.body", "body": part, "more_body": False})
            return
        self._watch.add(self)
        try:
            await unless_disconnected(self._write(part, send), receive)
        finally:
            self._watch.remove(self)

    def drop(self) -> None:
        """Closes the connection."""
        if self._abort is not None:
            self._abort()

    async def _write(self, part: bytes, send: Send) -> None:
        while not self._parts.ended:
            await self._send(part, send, more=True)
            part = await self._turns.take(self._parts)
        await self._send(part, send, more=False)

    async def _send(self, part: bytes, send: Send, *, more: bool) -> None:
        # An empty part would end a chunked body.
        if part or not more:
            self.blocked_since = time.monotonic()
            await send({"type": "http.response.body", "body": part, "more_body": more})
            self.blocked_since = None
