"""Admission limit, and Retry-After for refused requests."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from fastdeploy_lp.config import SchedulerConfig
from fastdeploy_lp.engine.errors import QueueFullError
from fastdeploy_lp.engine.outbox import Outbox

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
