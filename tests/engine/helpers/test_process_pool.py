"""Processes are lent, kept for later callers while they are needed, and ended with a caller that fails."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress

from fastdeploy_lp.engine.helpers.frame_process import FrameProcess
from fastdeploy_lp.engine.helpers.process_pool import ProcessPool, SlowPlaces
from fastdeploy_lp.engine.helpers.turns import Turns

AT_ONCE = 3


async def started() -> FrameProcess:
    # Waits for its first message.
    return await FrameProcess.start("fastdeploy_lp.engine.helpers.trial_process", niceness=7)


def pool() -> ProcessPool:
    return ProcessPool(started, Turns(AT_ONCE, "a process"), SlowPlaces(1, 1), idle_seconds=0.1)


def test_of_the_processes_that_nobody_needs_one_stays() -> None:
    async def scenario() -> None:
        lent = pool()
        async with AsyncExitStack() as stack:
            processes = [(await stack.enter_async_context(lent.process("")))[0] for _ in range(AT_ONCE)]
            assert len({each.pid for each in processes}) == AT_ONCE
        assert len(lent.idle) == AT_ONCE
        await until(lambda: sum(each.runs for each in processes) == 1)
        (kept,) = lent.idle
        async with lent.process("") as (again, _):
            assert again is kept
        await lent.close()
        assert not kept.runs

    asyncio.run(scenario())


def test_a_process_has_its_priority_from_the_beginning() -> None:
    """Priorities count within a session."""

    async def scenario() -> None:
        process = await started()
        assert os.getpriority(os.PRIO_PROCESS, process.pid) == max(7, os.getpriority(os.PRIO_PROCESS, 0))
        assert os.getsid(process.pid) == os.getsid(0)
        assert os.getpgid(process.pid) == process.pid
        await process.end()

    asyncio.run(scenario())


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


def test_a_caller_that_fails_ends_its_process_and_gives_back_its_place() -> None:
    async def scenario() -> None:
        lent = pool()
        # One more than there are turns and slow places.
        for _ in range(AT_ONCE + 1):
            with suppress(KeyError):
                async with lent.process("") as (process, lane):
                    assert lane.become_slow()
                    raise KeyError
            assert not process.runs
        assert lent.idle == ()

    asyncio.run(scenario())
