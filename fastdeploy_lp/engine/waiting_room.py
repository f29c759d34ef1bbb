"""How many sequences may run and wait, and what those are told who come when there is no room."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from fastdeploy_lp.config import SchedulerConfig
from fastdeploy_lp.engine.errors import QueueFullError
from fastdeploy_lp.engine.outbox import Outbox
from fastdeploy_lp.engine.retry_after import RetryAfter

# Of the room that is left, for one client's sequences.
FAIR_MULTIPLE = 4


@dataclass(eq=False)
class Entry:
    """Sequences of a request that have room and are not in flight yet."""

    count: int


class WaitingRoom:
    """Bounds what is in flight.

    With `fair` no client may fill the room so that others do not come to their turns: each has at most a multiple of
    what is left, which gives one alone four fifths, and two of them four ninths each.
    """

    def __init__(self, config: SchedulerConfig, outbox: Outbox, *, fair: bool) -> None:
        self._config = config
        self._outbox = outbox
        self._fair = fair
        self._retry_after = RetryAfter()
        self._entering: list[Entry] = []

    def left(self, count: int) -> None:
        """So many sequences have ended."""
        for _ in range(count):
            self._retry_after.ended()

    @contextmanager
    def entry(self, count: int) -> Iterator[Entry]:
        """Room for sequences that come into flight piece by piece; `count` is lowered as they do."""
        entry = Entry(count)
        self._entering.append(entry)
        try:
            yield entry
        finally:
            self._entering.remove(entry)

    def require(self, count: int, client: str, in_flight: int) -> None:
        """Raise QueueFullError unless a client's further sequences have room.

        A request larger than all the room there is gets in when it is alone, or it never would.
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
