"""The worker's socket: a private folder or a loopback port, and a watch over its handshakes."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path

import zmq
from zmq.utils.monitor import recv_monitor_message

from fastdeploy_lp.engine.client.locked_folder import LockedFolder

HOST = "127.0.0.1"
BACKLOG = 16
# Linux only; Python's socket module has no name for it.
SO_ATTACH_FILTER = 26
# One classic BPF instruction: return 0, which keeps no byte of a packet.
DROP = struct.pack("HBBI", 0x06, 0, 0, 0)


class LoopbackListener:
    """A listener for a ZeroMQ socket, which alone would accept unlimited connections of any user, each an open file.

    Raises OSError if it cannot listen on `port`.
    """

    def __init__(self, port: int) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind((HOST, port))
            self._socket.listen(BACKLOG)
        except OSError:
            self._socket.close()
            raise

    @property
    def endpoint(self) -> str:
        """The address in ZeroMQ's form."""
        return f"tcp://{HOST}:{self._socket.getsockname()[1]}"

    def hand_to(self, peer: zmq.Socket[bytes]) -> None:
        """Lets a ZeroMQ socket accept the connections; the socket closes its own descriptor of this listener."""
        peer.setsockopt(zmq.USE_FD, os.dup(self._socket.fileno()))
        peer.bind(self.endpoint)

    def refuse_further(self) -> None:
        """Drops new connection attempts in the kernel; existing connections stay.

        ZeroMQ cannot stop listening without closing its connections.
        """
        code = ctypes.create_string_buffer(DROP)
        program = struct.pack("HL", 1, ctypes.addressof(code))
        with contextlib.suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)

    def close(self) -> None:
        """Closes the port."""
        self._socket.close()


PREFIX = "fastdeploy_lp-w-"
# Short: the path of a unix socket is limited to 107 bytes, and the temporary folder may use most of them.
SOCKET_NAME = "ipc"


class SocketFolder(LockedFolder):
    """A private folder that exists until the worker has connected, since the connection outlives the socket's name."""

    def __init__(self) -> None:
        super().__init__(PREFIX)

    @property
    def socket(self) -> Path:
        """The path of the socket."""
        return self.path / SOCKET_NAME


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
