"""Processes are lent, kept for later callers up to a number, and ended with a caller that fails."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress

from fastdeploy_lp.engine.frame_process import FrameProcess
from fastdeploy_lp.engine.lane import SlowPlaces
from fastdeploy_lp.engine.process_pool import ProcessPool
from fastdeploy_lp.engine.turns import Turns

AT_ONCE, KEPT = 3, 1


async def started() -> FrameProcess:
    # Waits for its first message.
    return await FrameProcess.start("fastdeploy_lp.engine.trial_process")


def pool() -> ProcessPool:
    return ProcessPool(started, Turns(AT_ONCE, "a process"), SlowPlaces(1, 1), keep=KEPT)


def test_no_more_processes_stay_than_are_kept() -> None:
    async def scenario() -> None:
        lent = pool()
        async with AsyncExitStack() as stack:
            processes = [(await stack.enter_async_context(lent.process("")))[0] for _ in range(AT_ONCE)]
            assert len({each.pid for each in processes}) == AT_ONCE
        assert sum(each.runs for each in processes) == len(lent.idle) == KEPT
        (kept,) = lent.idle
        async with lent.process("") as (again, _):
            assert again is kept
        await lent.close()
        assert not kept.runs

    asyncio.run(scenario())


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
