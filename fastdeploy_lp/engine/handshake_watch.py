"""Logs connections to the worker's socket without its key, and reports the connection that has it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import zmq
from zmq.utils.monitor import recv_monitor_message

logger = logging.getLogger(__name__)

REFUSALS = zmq.Event.HANDSHAKE_FAILED_NO_DETAIL | zmq.Event.HANDSHAKE_FAILED_PROTOCOL | zmq.Event.HANDSHAKE_FAILED_AUTH

SUCCESS = zmq.Event.HANDSHAKE_SUCCEEDED


class HandshakeWatch:
    """Counts the refused handshakes of a socket; call `start` and `close` on one event loop.

    refused: failed handshakes so far. Failures 1, 2, 4, 8 and so on are logged, so that endless attempts do not fill
    the log. on_success: called when a handshake succeeds.
    """

    def __init__(self, socket: zmq.Socket[bytes], on_success: Callable[[], None] | None = None) -> None:
        self._socket = socket
        self._on_success = on_success
        self._monitor: zmq.Socket[bytes] | None = None
        self.refused = 0

    def start(self) -> None:
        """Starts listening to the socket's events."""
        self._monitor = self._socket.get_monitor_socket(REFUSALS | SUCCESS)
        asyncio.get_running_loop().add_reader(self._monitor.fileno(), self._drain)
        # The file descriptor signals changes only.
        self._drain()

    def close(self) -> None:
        """Stops listening; call it before closing the socket."""
        if self._monitor is None:
            return
        self._drain()
        asyncio.get_running_loop().remove_reader(self._monitor.fileno())
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._monitor = None

    def _drain(self) -> None:
        while self._monitor is not None and self._monitor.poll(0):
            told = recv_monitor_message(self._monitor, zmq.NOBLOCK)
            if told["event"] & SUCCESS and self._on_success is not None:
                self._on_success()
            if told["event"] & REFUSALS:
                self._count(str(told["endpoint"].decode(errors="replace")))

    def _count(self, endpoint: str) -> None:
        self.refused += 1
        if self.refused.bit_count() == 1:
            logger.warning(
                "a connection to the worker's socket was refused, because it does not know the key",
                extra={"fields": {"endpoint": endpoint, "refused": self.refused}},
            )
