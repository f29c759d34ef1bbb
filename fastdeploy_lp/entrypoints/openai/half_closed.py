"""Clients that have closed their half of a connection: they may still wait for an answer, or be disconnected."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable

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
