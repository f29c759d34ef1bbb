"""A pool of child processes for request work that may crash, hang or take long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from fastdeploy_lp.engine.frame_process import FrameProcess
from fastdeploy_lp.engine.lane import Lane, SlowPlaces
from fastdeploy_lp.engine.turns import Turns

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
