"""Client connections: one request after the other, each within its bounds."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from fastdeploy_lp.entrypoints.openai.listener.bounds import (
    ConnectionBounds,
    RefusedRequestError,
    RequestHead,
    UnreadBodies,
    client_of,
)
from fastdeploy_lp.entrypoints.openai.listener.refusal_lines import RefusalLines
from fastdeploy_lp.entrypoints.openai.protocol.error import ErrorInfo, ErrorResponse

logger = logging.getLogger("fastdeploy_lp.requests")

# Time limit for a request to begin or continue, and for the client to read the rest of the last answer. Pools of
# clients and proxies keep connections for up to a minute: the client has to close first, or its next request fails.
IDLE_SECONDS = 75
# Time limit from the first byte of a head to its last.
HEAD_SECONDS = 30
# Time for a client that still sends to read its refusal: closing earlier would reset the connection.
LINGER_SECONDS = 2
ABORT_EXTENSION = "fastdeploy_lp.abort"
WRITE_EXTENSION = "fastdeploy_lp.write"
# Bytes per call of the parser, so that the bytes it keeps are counted in time.
SLICE = 16 * 1024
# Requests that wait on a connection after the current one; each costs far more memory than its bytes.
MAX_PIPELINED = 32
# Limit for bodies refused before they were read: a client that reads while it sends sees its answer before the limit.
MAX_UNREAD_BYTES = 64 * 1024 * 1024
NO_HTTP = RefusedRequestError(HTTPStatus.BAD_REQUEST, "invalid_http", "Invalid HTTP request received.")
# Seconds between checks. A disconnected client answers bytes with a reset, visible to the kernel after a round trip.
LOOKS = (0.005, 0.02, 0.1, 0.5, 2.0)
# First byte of TCP_INFO for a connection that was reset.
TCP_CLOSE = 7
# An interim answer that an HTTP/1.1 client must accept any number of times before the final one.
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"
# Sent between two chunks of an answer: a leading zero of the next chunk's size; RFC 9112 permits any number of them.
LEADING_ZERO = b"0"


class HalfClosed:
    """Detection of disconnected clients after a half-close, which alone does not show if the client still reads."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._look: asyncio.TimerHandle | None = None

    @property
    def can_tell(self) -> bool:
        """True if this system reports the state of a connection."""
        return hasattr(socket, "TCP_INFO") and self._state() is not None

    def watch(self, *, provoke: bytes, on_gone: Callable[[], None]) -> None:
        """Sends `provoke`, which a reading client ignores; calls `on_gone` if the client answers with a reset."""
        self._transport.write(provoke)
        self._plan(LOOKS, on_gone)

    def cancel(self) -> None:
        """Cancels further checks."""
        if self._look is not None:
            self._look.cancel()

    def _plan(self, looks: tuple[float, ...], on_gone: Callable[[], None]) -> None:
        if looks:
            self._look = self._loop.call_later(looks[0], self._check, looks[1:], on_gone)

    def _check(self, looks: tuple[float, ...], on_gone: Callable[[], None]) -> None:
        if self._state() == TCP_CLOSE:
            on_gone()
        else:
            self._plan(looks, on_gone)

    def _state(self) -> int | None:
        plain = self._transport.get_extra_info("socket")
        if plain is None or plain.fileno() < 0:
            return None
        # The loop's socket object provides no options.
        with socket.socket(fileno=os.dup(plain.fileno())) as same:
            try:
                return same.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
            except OSError:
                return None


class BodyWrites:
    """Writes pieces of one answer's body at once, without a task and past the layers of the application.

    Layers see the beginning and the end of every answer in `send`. A layer that changes bodies, or has to see them,
    removes the extension from the scope of its requests.
    """

    __slots__ = ("_cycle",)

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle

    def __call__(self, piece: bytes) -> bool:
        """Writes a piece that others follow; returns False and writes nothing if `send` must be used.

        That is the case before the answer has begun, without chunks, while the client does not read, and after it has
        disconnected. An empty piece would end the answer.
        """
        cycle = self._cycle
        if not cycle.chunked_encoding or cycle.response_complete or cycle.disconnected or cycle.flow.write_paused:
            return False
        transport = cycle.transport
        if transport.is_closing() or not piece:
            return False
        transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        return True


class Connection(HttpToolsProtocol):
    """uvicorn's connection, with bounds on heads and timeouts for idle connections.

    A request can close its connection (`ABORT_EXTENSION`) and write pieces of its answer's body (`WRITE_EXTENSION`, see
    `BodyWrites`). A client that closes its half after a request still gets
    its answer.
    """

    bounds: ConnectionBounds
    refusals: RefusalLines
    unread_bodies: UnreadBodies
    peer = ""
    _last_bytes: asyncio.TimerHandle | None = None
    _head_deadline: asyncio.TimerHandle | None = None
    _half_closed: HalfClosed | None = None
    _pause: asyncio.TimerHandle | None = None
    _refused = False
    _unread = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Handles a new connection."""
        super().connection_made(transport)
        self._head = RequestHead()
        self.peer = client_of(self.client[0]) if self.client else ""
        self._await_more()
        self.bounds.came(self)

    def data_received(self, data: bytes) -> None:
        """Parses received bytes, one slice at a time."""
        if self._refused:
            return
        self._unset_keepalive_if_required()
        view = memoryview(data)
        for start in range(0, len(data), SLICE):
            if not self._parse(view[start : start + SLICE]):
                break
        if self._refused:
            return
        self.bounds.holds_of_head(self, 0 if self._head.complete else self._head.pending)
        if not self._head.complete and self._head_deadline is None:
            self._head_deadline = self.loop.call_later(HEAD_SECONDS, self._head_is_late)
        # In a head or a body: a client that stops in the middle of a request is as idle as one that sends nothing.
        if self in self.bounds and self.timeout_keep_alive_task is None and not self.transport.is_closing():
            self._await_more()

    def _parse(self, part: memoryview) -> bool:
        """Parses a slice; returns False if the rest of the received bytes must not be parsed."""
        self._head.pending += len(part)
        try:
            self.parser.feed_data(part)
            self._head.check_pending()
        except httptools.HttpParserUpgrade:
            # The request is answered as usual; the bytes after it may be another protocol.
            return False
        except RefusedRequestError as error:
            self._refuse(error)
            return False
        except httptools.HttpParserError as error:
            cause = error.__context__
            self._refuse(cause if isinstance(cause, RefusedRequestError) else NO_HTTP)
            return False
        return True

    def _await_more(self) -> None:
        # Any received byte ends the wait, as between two requests.
        self.timeout_keep_alive_task = self.loop.call_later(IDLE_SECONDS, self.timeout_keep_alive_handler)

    def connection_lost(self, exc: Exception | None) -> None:
        """Handles the end of the connection."""
        self.bounds.left(self)
        self._unset_keepalive_if_required()
        for timer in (self._last_bytes, self._head_deadline, self._half_closed, self._pause):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Handles the client's end of sending; returns True to keep the connection until its requests are answered."""
        answered = self.cycle is None or self.cycle.response_complete
        # TLS has no half-closed connections.
        if answered or self.cycle.more_body or self._refused or self.scheme == "https":
            return False
        self.cycle.keep_alive = False
        self._half_closed = HalfClosed(self.transport, self.loop)
        if not self._half_closed.can_tell:
            return False
        self._half_closed.watch(provoke=self._bytes_without_meaning(), on_gone=self.drop)
        return True

    def _bytes_without_meaning(self) -> bytes:
        if self.cycle.response_started:
            # An answer of a known length is written together with its head.
            return LEADING_ZERO if self.cycle.chunked_encoding else b""
        # With several requests, the answer to the first may already be written.
        return b"" if self.pipeline or self.scope["http_version"] == "1.0" else INTERIM

    def on_message_begin(self) -> None:
        """Handles the start of a request."""
        super().on_message_begin()
        self._head.begin()
        self._extensions: dict[str, Any] = {ABORT_EXTENSION: self.drop}
        self.scope["extensions"] = self._extensions

    def on_url(self, url: bytes) -> None:
        """Handles a piece of the URL."""
        self._head.add_url(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Handles a header; ignores trailers except for their size."""
        self._head.add_header(name, value)
        if not self._head.complete:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Handles the end of the head."""
        if len(self.pipeline) >= MAX_PIPELINED:
            reason = f"more than {MAX_PIPELINED} requests wait on this connection"
            raise RefusedRequestError(HTTPStatus.TOO_MANY_REQUESTS, "too_many_pipelined", reason)
        self._head.end()
        if self._head_deadline is not None:
            self._head_deadline.cancel()
            self._head_deadline = None
        super().on_headers_complete()
        self._extensions[WRITE_EXTENSION] = BodyWrites(self.cycle)

    def on_body(self, body: bytes) -> None:
        """Handles a piece of the body."""
        self._head.pending = 0
        super().on_body(body)
        if self.cycle.response_complete:
            self._unread += len(body)
            if self._unread > MAX_UNREAD_BYTES:
                self.drop()
            else:
                self._read_on_after(self.unread_bodies.pause_after(len(body)))

    def _read_on_after(self, seconds: float) -> None:
        self.flow.pause_reading()
        if self._pause is not None:
            self._pause.cancel()
        self._pause = self.loop.call_later(seconds, self.flow.resume_reading)

    def on_message_complete(self) -> None:
        """Handles the end of a request, including its body."""
        self._head.pending = 0
        if not self.cycle.response_complete:
            self.bounds.works(self)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Handles the end of an answer."""
        super().on_response_complete()
        if not self.transport.is_closing() and self.cycle.response_complete:
            self.bounds.rests(self)
            if self._refused:
                self._linger()

    def _head_is_late(self) -> None:
        reason = f"the request's head did not arrive within {HEAD_SECONDS} seconds"
        self._refuse(RefusedRequestError(HTTPStatus.REQUEST_TIMEOUT, "head_timeout", reason))

    def _refuse(self, error: RefusedRequestError) -> None:
        """Answers a request that never reaches the application, and closes the connection after earlier answers."""
        self._refused = True
        self.bounds.holds_of_head(self, 0)
        if self.refusals.permits(error.status):
            fields = {"client": self.peer, "status": error.status.value, "reason": str(error)}
            logger.info("refused before it was a request", extra={"fields": fields})
        unanswered = self.cycle is not None and not self.cycle.response_complete
        if unanswered and not (self._head.complete and self.cycle.more_body):
            return
        if unanswered and (self.cycle.response_started or self.pipeline):
            self.transport.close()
            return
        if unanswered:
            # The error is in this request's body: the application sees a disconnected client.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self._answer(error)
        self._linger()

    def _answer(self, error: RefusedRequestError) -> None:
        info = ErrorInfo(message=str(error), type="invalid_request_error", code=error.code)
        body = ErrorResponse(error=info).model_dump_json().encode()
        head = f"HTTP/1.1 {error.status.value} {error.status.phrase}\r\ncontent-type: application/json\r\n"
        self.transport.write(f"{head}connection: close\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)

    def _linger(self) -> None:
        """Closes the connection when the client has read the answer, or after LINGER_SECONDS."""
        if not self.transport.can_write_eof():
            self.transport.close()
            return
        self.transport.write_eof()
        self._last_bytes = self.loop.call_later(LINGER_SECONDS, self.transport.abort)

    def timeout_keep_alive_handler(self) -> None:
        """Closes a connection that has been idle too long."""
        super().timeout_keep_alive_handler()
        # The client may still read the last answer; a client that never reads would keep the connection forever.
        self._last_bytes = self.loop.call_later(IDLE_SECONDS, self.drop)

    def give_way(self) -> None:
        """Closes the connection at once, to make room for others."""
        self.transport.abort()

    def drop(self) -> None:
        """Closes the connection at once, and discards the bytes that the client has not read."""
        plain = self.transport.get_extra_info("socket")
        if plain is not None and plain.fileno() >= 0:
            # The loop's socket object accepts no options. Without SO_LINGER the kernel would keep sending the rest.
            with socket.socket(fileno=os.dup(plain.fileno())) as same:
                same.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()


def connection_class(bounds: ConnectionBounds) -> type[Connection]:
    """Returns the protocol class of each connection; servers with the same `bounds` share its limits."""
    return type(
        "BoundedConnection",
        (Connection,),
        {"bounds": bounds, "refusals": RefusalLines(), "unread_bodies": UnreadBodies()},
    )
