"""Clients that have closed their half of a connection: some wait for an answer, others are gone."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable

# A client that is gone answers bytes by a reset, which the kernel has after a round trip.
LOOKS = (0.005, 0.02, 0.1, 0.5, 2.0)
# The state of a connection that was reset, as the first byte of TCP_INFO.
TCP_CLOSE = 7
# An answer that every client of HTTP 1.1 has to expect any number of times before its own.
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"
# Between two chunks of an answer: a leading zero of the size of the next, of which RFC 9112 permits any number.
LEADING_ZERO = b"0"


class HalfClosed:
    """Finds out whether a client that sends no more still reads, since the end of its bytes alone tells neither."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._look: asyncio.TimerHandle | None = None

    @property
    def can_tell(self) -> bool:
        """Whether this system says what state a connection is in."""
        return hasattr(socket, "TCP_INFO") and self._state() is not None

    def watch(self, *, provoke: bytes, on_gone: Callable[[], None]) -> None:
        """Send `provoke`, which means nothing to a client that reads; call `on_gone` if it is answered by a reset."""
        self._transport.write(provoke)
        self._plan(LOOKS, on_gone)

    def cancel(self) -> None:
        """Look no more."""
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
        # The loop's own socket object has no options.
        with socket.socket(fileno=os.dup(plain.fileno())) as same:
            try:
                return same.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
            except OSError:
                return None
