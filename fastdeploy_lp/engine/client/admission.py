"""Admission of requests: the state of the engine, the limit of sequences, and Retry-After for refused requests."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from fastdeploy_lp.config import SchedulerConfig
from fastdeploy_lp.engine.client.outbox import Outbox
from fastdeploy_lp.engine.errors import EngineDeadError, EngineDrainingError, EngineStartingError, QueueFullError

REMEMBERED_ENDS = 64
LONGEST_SECONDS = 60
DEFAULT_SECONDS = 1


class RetryAfter:
    """Assigns each refused request a separate place in the order of retries.

    Places become free at the recent rate of ended sequences, so that clients that respect Retry-After do not retry all
    at once.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ends: deque[float] = deque(maxlen=REMEMBERED_ENDS)
        self._promised = 0.0

    def ended(self) -> None:
        """Records the end of a sequence."""
        self._ends.append(self._clock())

    def seconds(self, places: int) -> int:
        """Returns whole seconds, 1 to 60, until `places` are probably free, after all earlier refusals."""
        now = self._clock()
        if len(self._ends) < 2 or now <= self._ends[0]:
            return DEFAULT_SECONDS
        per_place = (now - self._ends[0]) / len(self._ends)
        self._promised = min(max(self._promised, now) + places * per_place, now + LONGEST_SECONDS)
        return min(max(math.ceil(self._promised - now), 1), LONGEST_SECONDS)


# Limit of one client's sequences as a multiple of the remaining room.
FAIR_MULTIPLE = 4


@dataclass(eq=False)
class Entry:
    """Sequences of an admitted request that are not in flight yet."""

    count: int


class WaitingRoom:
    """Limits the sequences in flight.

    With `fair` no client can fill the room and block others: each may have at most a multiple of the remaining room,
    which is four fifths of the room for a single client, and four ninths each for two clients.
    """

    def __init__(self, config: SchedulerConfig, outbox: Outbox, *, fair: bool) -> None:
        self._config = config
        self._outbox = outbox
        self._fair = fair
        self._retry_after = RetryAfter()
        self._entering: list[Entry] = []

    def left(self, count: int) -> None:
        """Records the end of `count` sequences."""
        for _ in range(count):
            self._retry_after.ended()

    @contextmanager
    def entry(self, count: int) -> Iterator[Entry]:
        """Reserves room for sequences that start one by one; the caller lowers `count` as they do."""
        entry = Entry(count)
        self._entering.append(entry)
        try:
            yield entry
        finally:
            self._entering.remove(entry)

    def require(self, count: int, client: str, in_flight: int) -> None:
        """Raises QueueFullError unless `count` more sequences of a client fit.

        A request larger than the whole room is admitted when nothing else is in flight; otherwise it never could be.
        """
        config = self._config
        room = config.max_num_seqs + config.max_waiting_requests
        held = self._outbox.held_by(client)
        in_flight += sum(each.count for each in self._entering)
        if in_flight and in_flight + count > room:
            raise QueueFullError(
                f"the server is busy: {in_flight} sequences run or wait, {count} more are asked for, and it "
                f"takes {room} (max_num_seqs = {config.max_num_seqs}, "
                f"max_waiting_requests = {config.max_waiting_requests}); try again later",
                self._retry_after.seconds(in_flight + count - room),
            )
        if self._fair and held and held + count > FAIR_MULTIPLE * (room - in_flight):
            raise QueueFullError(
                f"the server is busy: {held} sequences of this API key run or wait, {in_flight} of all keys, and some "
                f"of the {room} that it takes are left to other keys (fair_queue); try again later",
                self._retry_after.seconds(count),
            )


class Admission:
    """The state of an engine for new requests: loading, open, draining, or dead."""

    def __init__(self) -> None:
        self._started = False
        self._draining = False
        self._dead: str | None = None
        self._ended = asyncio.Event()
        self._quiet = asyncio.Event()

    @property
    def dead(self) -> str | None:
        """The reason why no worker is left and none will follow, or None."""
        return self._dead

    @property
    def is_open(self) -> bool:
        """True if requests are accepted, even if they must wait for a worker."""
        return self._dead is None and not self._draining

    def require_started(self) -> None:
        """Raises EngineStartingError until the first worker is ready; that worker may have ended since."""
        if self._dead is None and not self._started:
            raise EngineStartingError("the model is still being loaded; try again later")

    def require_not_dead(self) -> None:
        """Raises EngineDeadError if the engine has ended."""
        if self._dead is not None:
            raise EngineDeadError(self._dead)

    def require_open(self) -> None:
        """Raises EngineStartingError, EngineDeadError or EngineDrainingError while no requests are accepted."""
        self.require_started()
        self.require_not_dead()
        if self._draining:
            raise EngineDrainingError("the server is shutting down; another one may take the request")

    def start(self) -> None:
        """Accepts requests from now on: the first worker is ready."""
        self._started = True

    def drain(self, *, quiet: bool) -> None:
        """Accepts no more requests; `quiet`: none are in flight."""
        self._draining = True
        if quiet:
            self._quiet.set()

    def note_quiet(self) -> None:
        """Notes that the last request in flight has ended."""
        if self._draining:
            self._quiet.set()

    async def wait_quiet(self) -> None:
        """Waits until no requests are in flight, after `drain`."""
        await self._quiet.wait()

    def end(self, reason: str) -> None:
        """Accepts no more requests: the engine has ended."""
        self._dead = reason
        self._quiet.set()
        self._ended.set()

    async def wait_dead(self) -> str:
        """Waits until the engine has ended; returns the reason."""
        await self._ended.wait()
        return self._dead or ""
