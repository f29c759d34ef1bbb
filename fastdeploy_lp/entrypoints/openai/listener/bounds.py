"""Bounds on open connections, in total and per client, and on the heads and bodies of their requests."""

from __future__ import annotations

import asyncio
import ctypes
import ipaddress
import logging
import os
import resource
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, Protocol

logger = logging.getLogger(__name__)

# Bytes. Browsers and proxies send less than 16 KB; a valid request to this API never exceeds a bound.
MAX_URL_BYTES = 8 * 1024
MAX_HEADER_BYTES = 16 * 1024
MAX_HEAD_BYTES = 32 * 1024
MAX_HEADERS = 100
# Number of separator bytes in a header line.
SEPARATORS = len(b": \r\n")


class RefusedRequestError(Exception):
    """A request that never reaches the application: the connection answers it and closes."""

    def __init__(self, status: HTTPStatus, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class RequestHead:
    """Sizes of one head, including trailers; methods raise RefusedRequestError if a bound is exceeded.

    complete: True if the last line has arrived. pending: received bytes that no callback has counted yet, such as the
    beginning of a header; the parser keeps them in memory, so that they need a separate bound.
    """

    def __init__(self) -> None:
        self.complete = True
        self.pending = 0
        self._url = 0
        self._bytes = 0
        self._headers = 0

    def begin(self) -> None:
        """Starts a new request."""
        self.complete = False
        self._url = self._bytes = self._headers = 0

    def add_url(self, size: int) -> None:
        """Counts bytes of the URL."""
        self._url += size
        if self._url > MAX_URL_BYTES:
            reason = f"the URL is longer than {MAX_URL_BYTES} bytes"
            raise RefusedRequestError(HTTPStatus.REQUEST_URI_TOO_LONG, "url_too_long", reason)

    def add_header(self, name: bytes, value: bytes) -> None:
        """Counts a header or a trailer."""
        size = len(name) + len(value) + SEPARATORS
        self._headers += 1
        self._bytes += size
        if size > MAX_HEADER_BYTES:
            raise _too_large(f"a header is longer than {MAX_HEADER_BYTES} bytes")
        if self._headers > MAX_HEADERS:
            raise _too_large(f"the request has more than {MAX_HEADERS} headers")
        if self._bytes + self._url > MAX_HEAD_BYTES:
            raise _whole_too_large()

    def end(self) -> None:
        """Marks the head as complete; a body may follow."""
        self.complete = True
        self.pending = 0

    def check_pending(self) -> None:
        """Raises RefusedRequestError for an endless line or chunk size."""
        if self.pending > MAX_HEAD_BYTES:
            raise _whole_too_large()


def _whole_too_large() -> RefusedRequestError:
    return _too_large(f"the request's head is larger than {MAX_HEAD_BYTES} bytes")


def _too_large(reason: str) -> RefusedRequestError:
    return RefusedRequestError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "headers_too_large", reason)


# File descriptors reserved for files that are not connections.
OTHER_FILES = 256
# Connections of one client by default. The collector and the loop handle them in one piece when they come and end
# together, for up to 15 ms per 1,000.
MOST_PER_CLIENT = 2048
# Bytes of unfinished heads over all connections; each head also has a bound.
MAX_BYTES_OF_HEADS = 64 * 1024 * 1024
# Bits of an IPv6 network that usually belongs to one client.
IPV6_PREFIX = 64


class OpenConnection(Protocol):
    """A connection that can be closed for others."""

    @property
    def peer(self) -> str:
        """The client of the connection, as returned by `client_of`."""

    def give_way(self) -> None:
        """Closes the connection at once."""


class ConnectionBounds:
    """Connections by client, and idle connections (without a whole request), longest idle first.

    limit: connections in total. per_client: connections of one address (for IPv6, of one /64 network). Above a limit,
    the longest idle connection of that client, or of all, is closed: the new one if all others carry requests.
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
        """Counts a new connection, which is idle."""
        client = connection.peer
        self._open[client] += 1
        self._count += 1
        self.rests(connection)
        if self._open[client] > self._per_client:
            self._drop_first(self._idle_of[client])
        elif self._count > self._limit:
            self._drop_first(self._idle)

    def left(self, connection: OpenConnection) -> None:
        """Removes a connection that has ended."""
        client = connection.peer
        self.works(connection)
        self._open[client] -= 1
        self._count -= 1
        if not self._open[client]:
            del self._open[client]
            self._idle_of.pop(client, None)

    def rests(self, connection: OpenConnection) -> None:
        """Marks a connection as idle."""
        self._idle[connection] = None
        self._idle_of[connection.peer][connection] = None

    def works(self, connection: OpenConnection) -> None:
        """Marks a connection as not idle: it carries a request, or has ended."""
        self.holds_of_head(connection, 0)
        self._idle.pop(connection, None)
        self._idle_of[connection.peer].pop(connection, None)

    def holds_of_head(self, connection: OpenConnection, size: int) -> None:
        """Records `size` bytes of a connection's unfinished head in memory; above the limit, closes the oldest."""
        self._bytes_of_heads += size - self._heads.pop(connection, 0)
        if size:
            self._heads[connection] = size
        while self._bytes_of_heads > MAX_BYTES_OF_HEADS:
            first = next(iter(self._heads))
            self._bytes_of_heads -= self._heads.pop(first)
            first.give_way()

    def make_room(self, count: int) -> None:
        """Closes up to `count` connections, longest idle first."""
        for _ in range(min(count, len(self._idle))):
            self._drop_first(self._idle)

    def _drop_first(self, idle: dict[OpenConnection, None]) -> None:
        first = next(iter(idle))
        self.works(first)
        first.give_way()

    def __contains__(self, connection: OpenConnection) -> bool:
        """Returns True if the connection is idle."""
        return connection in self._idle


def connection_bounds(max_connections: int | None, per_client: int | None) -> ConnectionBounds:
    """Returns a server's bounds; the defaults are the process's file limit, and half of it or less per client."""
    limit = max_connections or max(files_allowed() - OTHER_FILES, 1)
    return ConnectionBounds(limit, per_client or max(min(limit // 2, MOST_PER_CLIENT), 1))


def client_of(peer: str) -> str:
    """Returns the client of a peer address: the address, or the IPv6 network that one client usually has."""
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
    """Raises the soft limit of open files to the hard limit, and returns it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard if hard != resource.RLIM_INFINITY else 2**20


def files_are_left() -> bool:
    """Returns True if this process can open one more file."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


# Idle connections to close at each check that finds no free descriptor.
GIVE_WAY = 32
LOOK_SECONDS = 1.0


class DescriptorWatch:
    """Logs the beginning and the end of a shortage, and closes idle connections while it lasts."""

    def __init__(self, bounds: ConnectionBounds) -> None:
        self._bounds = bounds
        self._short = False
        self._next_look: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begins to check, at once and then every LOOK_SECONDS."""
        self.look()
        self._next_look = asyncio.get_running_loop().call_later(LOOK_SECONDS, self.start)

    def stop(self) -> None:
        """Ends the checks."""
        if self._next_look is not None:
            self._next_look.cancel()

    def look(self) -> None:
        """Checks that one more file can be opened."""
        short = not files_are_left()
        if short:
            self._bounds.make_room(GIVE_WAY)
        if short == self._short:
            return
        self._short = short
        if short:
            fields = {"files_allowed": resource.getrlimit(resource.RLIMIT_NOFILE)[0]}
            logger.error("no file can be opened: new connections are refused", extra={"fields": fields})
        else:
            logger.warning("files can be opened again")


# Bytes. The allocator keeps freed memory, which is useful for small bodies but not for many large ones.
WORTH_BYTES = 32 * 1024 * 1024
# Time for the last references to a body to disappear, and for further bodies to be freed.
DELAY_SECONDS = 2.0


class ReturnedMemory:
    """Returns memory to the system DELAY_SECONDS after `WORTH_BYTES` of bodies were freed; for one event loop."""

    def __init__(self) -> None:
        self._freed = 0
        self._planned = False

    def freed(self, size: int) -> None:
        """Counts `size` bytes that are about to be freed."""
        self._freed += size
        if self._freed >= WORTH_BYTES and not self._planned:
            self._planned = True
            asyncio.get_running_loop().call_later(DELAY_SECONDS, self._return)

    def _return(self) -> None:
        self._freed = 0
        self._planned = False
        # In a thread: malloc_trim walks the whole heap, and does not need the interpreter's lock.
        asyncio.get_running_loop().run_in_executor(None, return_memory)


def return_memory() -> None:
    """Returns the heap's free pages to the system, if the C library has `malloc_trim`."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


BYTES_PER_SECOND = 16 * 1024 * 1024


class UnreadBodies:
    """Spreads the reading of unneeded bodies over time, for all connections together.

    They are read because closing a connection while its client still sends resets it, and may lose the answer.
    """

    def __init__(self, bytes_per_second: float = BYTES_PER_SECOND) -> None:
        self._seconds_per_byte = 1 / bytes_per_second
        self._free_at = 0.0

    def pause_after(self, count: int) -> float:
        """Returns the seconds for which a connection must pause reading after `count` bytes."""
        now = time.monotonic()
        self._free_at = max(self._free_at, now) + count * self._seconds_per_byte
        return self._free_at - now


BODY_KEY = "body"
# Time limit for a body to arrive: BODY_SECONDS plus its size at SLOWEST_BYTES_PER_SECOND.
BODY_SECONDS = 60.0
SLOWEST_BYTES_PER_SECOND = 64 * 1024


class BodyInFlight:
    """One body, from its first byte until it is parsed. reading: the task that waits for the rest of the body.

    gave_way: True if the body was refused to make room for another one.
    """

    def __init__(self, bodies: BodiesInFlight, client: str) -> None:
        self._bodies = bodies
        self._began = time.monotonic()
        self.client = client
        self.size = 0
        self.reading: asyncio.Future[Any] | None = None
        self.gave_way = False

    @property
    def deadline(self) -> float:
        """Deadline of the whole body, given the bytes so far; on the monotonic clock."""
        return self._began + BODY_SECONDS + self.size / SLOWEST_BYTES_PER_SECOND

    def grow(self, size: int) -> None:
        """Counts `size` more received bytes."""
        self._bodies.grow(self, size)

    def release(self) -> None:
        """Stops counting the bytes, which are no longer in memory."""
        self._bodies.release(self)

    def give_way(self) -> None:
        """Refuses the body, and cancels the task that reads it."""
        self.gave_way = True
        self.release()
        if self.reading is not None:
            self.reading.cancel()


class BodiesInFlight:
    """Keeps at most `max_bytes` of unparsed bodies in memory.

    Above the limit, the client with the most bytes loses its largest body: a slow body never delays the bodies of
    other clients, and a small body always finds room beside large ones.
    """

    def __init__(self, max_bytes: int, on_freed: Callable[[int], None] | None = None) -> None:
        self._max_bytes = max_bytes
        self._bodies: set[BodyInFlight] = set()
        self._on_freed = on_freed or ReturnedMemory().freed
        self.bytes = 0

    def begin(self, client: str) -> BodyInFlight:
        """Returns a new, empty body of this client."""
        return BodyInFlight(self, client)

    def grow(self, body: BodyInFlight, size: int) -> None:
        """Counts bytes of a body; above the limit, other bodies or this one are refused."""
        self._bodies.add(body)
        body.size += size
        self.bytes += size
        while self.bytes > self._max_bytes:
            self._heaviest().give_way()

    def release(self, body: BodyInFlight) -> None:
        """Stops counting a body's bytes."""
        if body in self._bodies:
            self._bodies.discard(body)
            self.bytes -= body.size
            self._on_freed(body.size)

    def _heaviest(self) -> BodyInFlight:
        of_clients: Counter[str] = Counter()
        for body in self._bodies:
            of_clients[body.client] += body.size
        return max(self._bodies, key=lambda body: (of_clients[body.client], body.size))


def release_body(scope: Mapping[str, Any]) -> None:
    """Releases the body of a request; call it after parsing, when no reference to the bytes is left."""
    body = scope.get("state", {}).get(BODY_KEY)
    if isinstance(body, BodyInFlight):
        body.release()
