"""Waiting for answers while the client is connected, and detection of clients that have left."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from fastapi import Request
from starlette.requests import ClientDisconnect
from starlette.types import Receive

from fastdeploy_lp.engine.errors import RequestTimeoutError
from fastdeploy_lp.engine.pace import Pace

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


CLIENT_CLOSED_REQUEST = 499
CLOSED_HANDLE = "the handler is closed"

Output = TypeVar("Output", covariant=True)
Result = TypeVar("Result")


class InFlight(Protocol[Output]):
    """A running request of generation or pooling."""

    async def result(self) -> Output:
        """Returns the whole answer."""

    def close(self) -> None:
        """Releases the request: no caller waits for its result."""


def is_disconnect(error: Exception) -> bool:
    """Returns True if a request failed because its connection is closed.

    uvicorn closes a connection when the bytes after a request are not HTTP, and still answers the request; uvloop then
    raises a plain RuntimeError.
    """
    return isinstance(error, ClientDisconnect) or (isinstance(error, RuntimeError) and CLOSED_HANDLE in str(error))


async def results_unless_disconnected(in_flight: Sequence[InFlight[Output]], request: Request) -> list[Output] | None:
    """Returns the answers; aborts the requests and returns None if the client disconnects first."""
    try:
        return await unless_disconnected(_all_results(in_flight), request.receive)
    finally:
        for each in in_flight:
            each.close()


async def _all_results(in_flight: Sequence[InFlight[Output]]) -> list[Output]:
    tasks, pace = [], Pace()
    try:
        for each in in_flight:
            tasks.append(asyncio.ensure_future(each.result()))
            await pace.rest()
        return list(await asyncio.gather(*tasks))
    finally:
        # If one fails, no caller waits for the others.
        if not all(task.done() for task in tasks):
            for task in tasks:
                task.cancel()
                await pace.rest()
            await asyncio.gather(*tasks, return_exceptions=True)


async def unless_disconnected(work: Coroutine[Any, Any, Result], receive: Receive) -> Result | None:
    """Returns the result of `work`; cancels it and returns None if the client disconnects first."""
    result = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((result, gone), return_when=asyncio.FIRST_COMPLETED)
        return await result if result.done() else None
    finally:
        for task in (result, gone):
            task.cancel()
        await asyncio.gather(result, gone, return_exceptions=True)


async def while_connected(work: Coroutine[Any, Any, Result], receive: Receive, deadline: float | None = None) -> Result:
    """Returns the result of `work`, which is cancelled if the client disconnects or the deadline passes.

    deadline: on the monotonic clock, None for no limit. Raises ClientDisconnect and RequestTimeoutError.
    """
    result = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        seconds = None if deadline is None else max(deadline - time.monotonic(), 0.0)
        await asyncio.wait((result, gone), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if result.done():
            return await result
        if gone.done():
            raise ClientDisconnect
        raise RequestTimeoutError("timeout: the time of the request is over, and it has not begun")
    finally:
        for task in (result, gone):
            task.cancel()
        await asyncio.gather(result, gone, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
