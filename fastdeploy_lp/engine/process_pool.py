"""Child processes for work of requests that may crash, hang or take long."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from fastdeploy_lp.engine.frame_process import FrameProcess
from fastdeploy_lp.engine.lane import Lane, SlowPlaces
from fastdeploy_lp.engine.turns import Turns


class ProcessPool:
    """Lends processes to callers, who wait for `turns` and leave theirs to others while their work is slow.

    Processes start when a caller needs one. `keep` of them stay for later callers, and a process whose caller raised
    an exception, or was cancelled, ends. Lives on one event loop.

    start: returns a process that is ready.
    """

    def __init__(
        self, start: Callable[[], Awaitable[FrameProcess]], turns: Turns, slow_places: SlowPlaces, keep: int
    ) -> None:
        self._start = start
        self._turns = turns
        self._slow_places = slow_places
        self._keep = keep
        self._idle: list[FrameProcess] = []

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
            await self.take_back(process)
        finally:
            lane.leave()

    async def take_back(self, process: FrameProcess) -> None:
        """Keep a process for the next caller, or end it where enough are kept."""
        if process.runs and len(self._idle) < self._keep:
            self._idle.append(process)
        else:
            await process.end()

    async def close(self) -> None:
        """End the processes that wait for a caller."""
        while self._idle:
            await self._idle.pop().end()

    async def _ready(self) -> FrameProcess:
        """An idle process, or a new one: what an earlier caller left in a process may have ended it meanwhile."""
        while self._idle:
            process = self._idle.pop()
            if process.runs:
                return process
            await process.end()
        return await self._start()
