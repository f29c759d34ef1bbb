"""How many connections may be open, in all and of one client, and which of them give way."""

from __future__ import annotations

import ipaddress
import os
import resource
from collections import defaultdict
from typing import Protocol

# Files of this process that are no connections.
OTHER_FILES = 256
# Bytes of unfinished heads over all connections; each of them has a bound, too.
MAX_BYTES_OF_HEADS = 64 * 1024 * 1024
# Of an IPv6 address, one customer usually has the rest.
IPV6_PREFIX = 64


class OpenConnection(Protocol):
    """A connection that may be told to end."""

    @property
    def peer(self) -> str:
        """Whose connection it is, as `client_of` says."""

    def give_way(self) -> None:
        """End at once."""


class ConnectionBounds:
    """Connections by client, and those that carry no whole request, longest idle first.

    limit: connections in all. per_client: of one address (of IPv6, of one /64 network). When there are more, of that
    client or of all, the one that is idle for longest gives way: the new one, if all others carry requests.
    """

    def __init__(self, limit: int, per_client: int) -> None:
        self._limit = limit
        self._per_client = per_client
        self._open: dict[str, int] = defaultdict(int)
        self._count = 0
        self._idle: dict[OpenConnection, None] = {}
        self._idle_of: dict[str, dict[OpenConnection, None]] = defaultdict(dict)
        self._heads: dict[OpenConnection, int] = {}
        self._bytes_of_heads = 0

    def came(self, connection: OpenConnection) -> None:
        """Count a new connection, which is idle."""
        client = connection.peer
        self._open[client] += 1
        self._count += 1
        self.rests(connection)
        if self._open[client] > self._per_client:
            self._drop_first(self._idle_of[client])
        elif self._count > self._limit:
            self._drop_first(self._idle)

    def left(self, connection: OpenConnection) -> None:
        """Forget a connection that has ended."""
        client = connection.peer
        self.works(connection)
        self._open[client] -= 1
        self._count -= 1
        if not self._open[client]:
            del self._open[client]
            self._idle_of.pop(client, None)

    def rests(self, connection: OpenConnection) -> None:
        """A connection is idle again."""
        self._idle[connection] = None
        self._idle_of[connection.peer][connection] = None

    def works(self, connection: OpenConnection) -> None:
        """A connection carries a request, or is gone."""
        self.holds_of_head(connection, 0)
        self._idle.pop(connection, None)
        self._idle_of[connection.peer].pop(connection, None)

    def holds_of_head(self, connection: OpenConnection, size: int) -> None:
        """`size` bytes of a connection's unfinished head are in memory; the oldest heads give way to the newest."""
        self._bytes_of_heads += size - self._heads.pop(connection, 0)
        if size:
            self._heads[connection] = size
        while self._bytes_of_heads > MAX_BYTES_OF_HEADS:
            first = next(iter(self._heads))
            self._bytes_of_heads -= self._heads.pop(first)
            first.give_way()

    def make_room(self, count: int) -> None:
        """End up to `count` connections, those that are idle for longest."""
        for _ in range(min(count, len(self._idle))):
            self._drop_first(self._idle)

    def _drop_first(self, idle: dict[OpenConnection, None]) -> None:
        first = next(iter(idle))
        self.works(first)
        first.give_way()

    def __contains__(self, connection: OpenConnection) -> bool:
        """Whether a connection is idle."""
        return connection in self._idle


def connection_bounds(max_connections: int | None, per_client: int | None) -> ConnectionBounds:
    """The bounds of a server; None: as many as this process may open files, and half of them of one client."""
    limit = max_connections or max(files_allowed() - OTHER_FILES, 1)
    return ConnectionBounds(limit, per_client or max(limit // 2, 1))


def client_of(peer: str) -> str:
    """Whose connection it is: an address, or the network that one client usually has."""
    if ":" not in peer:
        return peer
    try:
        address = ipaddress.IPv6Address(peer.partition("%")[0])
    except ValueError:
        return peer
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((address, IPV6_PREFIX), strict=False))


def files_allowed() -> int:
    """How many files this process may open, once it has asked for all that it can have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard if hard != resource.RLIM_INFINITY else 2**20


def files_are_left() -> bool:
    """Whether this process can open one more file."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError:
        return False
    return True
