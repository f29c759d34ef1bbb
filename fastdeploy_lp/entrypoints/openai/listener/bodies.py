"""Request bodies of all connections: the bytes that arrive, the rate at which answered ones are read, and the memory
after them."""

from __future__ import annotations

import asyncio
import ctypes
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

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
