"""Child processes for work of requests that may crash, hang or take long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from fastdeploy_lp.engine.frame_process import FrameProcess
from fastdeploy_lp.engine.lane import Lane, SlowPlaces
from fastdeploy_lp.engine.turns import Turns

# A process that nobody has needed for so long ends, unless it is the last.
IDLE_SECONDS = 10.0


class ProcessPool:
    """Lends processes to callers, who wait for `turns` and leave theirs to others while their work is slow.

    Processes start when a caller needs one. Of those that wait for a caller, the last one stays. A process whose caller
    raised an exception, or was cancelled, ends. Lives on one event loop.

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
        """Processes that wait for a caller."""
        return tuple(self._idle)

    @asynccontextmanager
    async def process(self, client: str) -> AsyncIterator[tuple[FrameProcess, Lane]]:
        """A process and the place in which its caller works; raises QueueFullError, and what `start` raises."""
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
        """Keep a process for the next caller."""
        loop = asyncio.get_running_loop()
        self._idle[process] = loop.call_later(self._idle_seconds, self._end_if_others_are_idle, process)

    async def close(self) -> None:
        """End the processes that wait for a caller."""
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
        """An idle process, or a new one: what an earlier caller left in a process may have ended it meanwhile."""
        while self._idle:
            process = self._pop()
            if process.runs:
                return process
            await process.end()
        return await self._start()
