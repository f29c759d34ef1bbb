"""A loopback port that is open until the one peer it is for has come."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct

import zmq

HOST = "127.0.0.1"
BACKLOG = 16
# Linux only, and not among the names of Python's module.
SO_ATTACH_FILTER = 26
# One instruction of the classic packet filter: return 0, which is to keep no byte of a packet.
DROP = struct.pack("HBBI", 0x06, 0, 0, 0)


class LoopbackListener:
    """Listens for a ZeroMQ socket, which would take any number of connections of any user, each an open file.

    Raises OSError when it cannot listen on `port`.
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
        """Let a ZeroMQ socket accept the connections; it closes its own descriptor of this listener."""
        peer.setsockopt(zmq.USE_FD, os.dup(self._socket.fileno()))
        peer.bind(self.endpoint)

    def refuse_further(self) -> None:
        """Drop what comes for the listener, in the kernel; connections that are there stay.

        ZeroMQ can only stop listening together with its connections.
        """
        code = ctypes.create_string_buffer(DROP)
        program = struct.pack("HL", 1, ctypes.addressof(code))
        with contextlib.suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)

    def close(self) -> None:
        """Let go of the port."""
        self._socket.close()
