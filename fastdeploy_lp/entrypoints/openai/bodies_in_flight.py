"""The bodies that arrive, over all connections, and how many bytes of them are kept."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from fastdeploy_lp.entrypoints.openai.returned_memory import ReturnedMemory

BODY_KEY = "body"
# For a body to arrive: so many seconds, and those that it takes at this pace.
BODY_SECONDS = 60.0
SLOWEST_BYTES_PER_SECOND = 64 * 1024


class BodyInFlight:
    """One body, from its first byte until it is parsed. reading: the task that waits for the rest of it.

    gave_way: whether its room went to another body.
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
        """When the body has to be there, given what has arrived; on the monotonic clock."""
        return self._began + BODY_SECONDS + self.size / SLOWEST_BYTES_PER_SECOND

    def grow(self, size: int) -> None:
        """`size` more bytes have arrived."""
        self._bodies.grow(self, size)

    def release(self) -> None:
        """The bytes are not kept any more."""
        self._bodies.release(self)

    def give_way(self) -> None:
        """Be refused."""
        self.gave_way = True
        self.release()
        if self.reading is not None:
            self.reading.cancel()


class BodiesInFlight:
    """Keeps at most `max_bytes` of bodies that are not parsed yet.

    When there are more, the client that has most of them loses its largest: a body that arrives slowly holds up nobody
    else's, and a small one always finds room beside large ones.
    """

    def __init__(self, max_bytes: int, on_freed: Callable[[int], None] | None = None) -> None:
        self._max_bytes = max_bytes
        self._bodies: set[BodyInFlight] = set()
        self._on_freed = on_freed or ReturnedMemory().freed
        self.bytes = 0

    def begin(self, client: str) -> BodyInFlight:
        """A body of this client begins."""
        return BodyInFlight(self, client)

    def grow(self, body: BodyInFlight, size: int) -> None:
        """Count bytes of a body; others, or the body itself, may have to give way."""
        self._bodies.add(body)
        body.size += size
        self.bytes += size
        while self.bytes > self._max_bytes:
            self._heaviest().give_way()

    def release(self, body: BodyInFlight) -> None:
        """Count a body's bytes no more."""
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
    """A request's body is parsed, and nothing refers to its bytes any more."""
    body = scope.get("state", {}).get(BODY_KEY)
    if isinstance(body, BodyInFlight):
        body.release()
