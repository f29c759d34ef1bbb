"""The connections of clients: how many may stand, and which give way."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import struct
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

# Files of this process that are no connections.
OTHER_FILES = 256
# For the next request of a connection to come, and for what is left of the last answer to be read. Pools of clients and
# proxies keep connections for up to a minute: the client has to give up first, or a request meets a closed end.
IDLE_SECONDS = 75
ABORT_EXTENSION = "fastdeploy_lp.abort"


class IdleConnections:
    """Connections that carry no request, longest idle first; the first gives way when there are more than `limit`."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._idle: dict[Connection, None] = {}

    def came(self, connection: Connection, count: int) -> None:
        """A connection is idle that is new; `count` there are now."""
        self.rests(connection)
        if count > self._limit:
            oldest = next(iter(self._idle))
            del self._idle[oldest]
            oldest.transport.abort()

    def rests(self, connection: Connection) -> None:
        """A connection is idle again."""
        self._idle[connection] = None

    def works(self, connection: Connection) -> None:
        """A connection carries a request, or is gone."""
        self._idle.pop(connection, None)


class Connection(HttpToolsProtocol):
    """uvicorn's, with an end to connections on which nothing happens; requests may end theirs (`ABORT_EXTENSION`)."""

    idle: IdleConnections
    _last_bytes: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has come."""
        super().connection_made(transport)
        # Whatever comes ends the wait, as it does between two requests.
        self.timeout_keep_alive_task = self.loop.call_later(IDLE_SECONDS, self.timeout_keep_alive_handler)
        self.idle.came(self, len(self.connections))

    def connection_lost(self, exc: Exception | None) -> None:
        """A client has gone."""
        self.idle.works(self)
        self._unset_keepalive_if_required()
        if self._last_bytes is not None:
            self._last_bytes.cancel()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        extensions: dict[str, Any] = {ABORT_EXTENSION: self.drop}
        self.scope["extensions"] = extensions

    def on_headers_complete(self) -> None:
        """A request's head is there."""
        self.idle.works(self)
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        """A request is answered."""
        super().on_response_complete()
        if not self.transport.is_closing() and self.cycle.response_complete:
            self.idle.rests(self)

    def timeout_keep_alive_handler(self) -> None:
        """Nothing has come for too long."""
        super().timeout_keep_alive_handler()
        # What was written before is still to be read; a client that does not read would hold it for ever.
        self._last_bytes = self.loop.call_later(IDLE_SECONDS, self.drop)

    def drop(self) -> None:
        """End the connection at once, and forget what the client has not read."""
        plain = self.transport.get_extra_info("socket")
        if plain is not None and plain.fileno() >= 0:
            # The loop's own socket object takes no options. Without this one the kernel would go on offering the rest.
            with socket.socket(fileno=os.dup(plain.fileno())) as same:
                same.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()


def connection_class(max_connections: int | None) -> type[Connection]:
    """What uvicorn makes of each connection; None lets as many stand as this process may open files."""
    limit = max_connections or max(files_allowed() - OTHER_FILES, 1)
    return type("LimitedConnection", (Connection,), {"idle": IdleConnections(limit)})


def files_allowed() -> int:
    """How many files this process may open, once it has asked for all that it can have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard if hard != resource.RLIM_INFINITY else 2**20
