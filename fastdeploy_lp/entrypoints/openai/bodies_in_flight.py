"""Request bodies that are still arriving, over all connections, and the bound on their bytes in memory."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from fastdeploy_lp.entrypoints.openai.returned_memory import ReturnedMemory

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
