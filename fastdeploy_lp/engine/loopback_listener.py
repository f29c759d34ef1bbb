"""A loopback port that accepts connections until its one peer has connected."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct

import zmq

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
