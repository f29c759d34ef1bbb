"""A pool of child processes for request work that may crash, hang or take long."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from fastdeploy_lp.engine.helpers.frame_process import FrameProcess
from fastdeploy_lp.engine.helpers.turns import Turns


class SlowPlaces:
    """Places for slow work: `most` in all, `most_each` per kind."""

    def __init__(self, most: int, most_each: int) -> None:
        self._most = most
        self._most_each = most_each
        self._taken: Counter[str] = Counter()

    @property
    def num_taken(self) -> int:
        """Places in use."""
        return self._taken.total()

    def take(self, kind: str) -> bool:
        """Takes a place; returns False if none is left."""
        if self.num_taken >= self._most or self._taken[kind] >= self._most_each:
            return False
        self._taken[kind] += 1
        return True

    def give_back(self, kind: str) -> None:
        """Frees a place of this kind."""
        self._taken[kind] -= 1


class Lane:
    """A caller's turn, exchanged for a slow place when its work takes long."""

    def __init__(self, turns: Turns, slow_places: SlowPlaces) -> None:
        self._turns = turns
        self._slow_places = slow_places
        self._kind: str | None = None

    @property
    def is_slow(self) -> bool:
        """True once the turn is exchanged."""
        return self._kind is not None

    def become_slow(self, kind: str = "") -> bool:
        """Exchanges the turn for a slow place of this kind, once; returns False if none is free."""
        if self.is_slow:
            return True
        if not self._slow_places.take(kind):
            return False
        self._kind = kind
        self._turns.give_back()
        return True

    def leave(self) -> None:
        """Releases the turn or the place."""
        if self._kind is None:
            self._turns.give_back()
        else:
            self._slow_places.give_back(self._kind)


# A process idle for this long ends, unless it is the last idle one.
IDLE_SECONDS = 10.0


class ProcessPool:
    """Lends processes to callers, who wait for `turns` and give up their turn while their work is slow.

    Processes start when a caller needs one. The last idle process stays. A process ends if its caller raises an
    exception or is cancelled. Used from one event loop.

    start: returns a process that is ready.
    """

    def __init__(
        self,
        start: Callable[[], Awaitable[FrameProcess]],
        turns: Turns,
        slow_places: SlowPlaces,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        self._start = start
        self._turns = turns
        self._slow_places = slow_places
        self._idle_seconds = idle_seconds
        self._idle: dict[FrameProcess, asyncio.TimerHandle] = {}
        self._ending: set[asyncio.Task[int | None]] = set()

    @property
    def idle(self) -> tuple[FrameProcess, ...]:
        """The idle processes."""
        return tuple(self._idle)

    @asynccontextmanager
    async def process(self, client: str) -> AsyncIterator[tuple[FrameProcess, Lane]]:
        """Lends a process with its caller's lane; raises QueueFullError, and what `start` raises."""
        await self._turns.take(client)
        lane = Lane(self._turns, self._slow_places)
        try:
            process = await self._ready()
            try:
                yield process, lane
            except BaseException:
                await process.end()
                raise
            self.take_back(process)
        finally:
            lane.leave()

    def take_back(self, process: FrameProcess) -> None:
        """Keeps a process for the next caller."""
        loop = asyncio.get_running_loop()
        self._idle[process] = loop.call_later(self._idle_seconds, self._end_if_others_are_idle, process)

    async def close(self) -> None:
        """Ends the idle processes."""
        while self._idle:
            await self._pop().end()
        await asyncio.gather(*self._ending)

    def _end_if_others_are_idle(self, process: FrameProcess) -> None:
        if len(self._idle) > 1:
            del self._idle[process]
            ending = asyncio.ensure_future(process.end())
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)

    def _pop(self) -> FrameProcess:
        process, timer = self._idle.popitem()
        timer.cancel()
        return process

    async def _ready(self) -> FrameProcess:
        """Returns a live idle process, or a new one: leftovers of an earlier caller may have ended an idle process."""
        while self._idle:
            process = self._pop()
            if process.runs:
                return process
            await process.end()
        return await self._start()
