"""Arguments are tried in processes that may end, crash or hang without harm to anything else."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.tiny import tiny_fd_config

from fastdeploy_lp.engine.trials import PROCESSES, Trials
from fastdeploy_lp.logits_processor import load_processors
from fastdeploy_lp.logits_processor.author_threads import NotInTimeError

SPEC = "deadly=support.tried_deadly:PLUGIN"
PATIENT = 120.0


@asynccontextmanager
async def trials(timeout: float = PATIENT) -> AsyncIterator[Trials]:
    made = Trials(tiny_fd_config(), load_processors([SPEC]), timeout)
    try:
        yield made
    finally:
        await made.close()


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(scenario())


async def refusal(of: Trials, **args: str) -> BaseException | None:
    return (await of.outcome("deadly", args)).error


def test_a_trial_that_ends_its_process_is_that_requests_error_and_the_next_one_goes_on() -> None:
    async def scenario() -> None:
        async with trials() as made:
            for mode, status in (("exit", "status 7"), ("segfault", "status -11"), ("kill", "status -9")):
                error = await refusal(made, mode=mode, when="call" if mode == "exit" else "build")
                assert isinstance(error, ValueError)
                assert status in str(error)
            assert await refusal(made) is None
            assert str(await refusal(made, mode="refuse")) == "these arguments do not fit"
            assert await refusal(made, mode="refuse", when="call") is not None

    run(scenario)


def test_trials_that_hang_end_in_time_and_leave_room_for_others() -> None:
    async def scenario() -> None:
        async with trials(timeout=1.0) as made:
            hanging = [refusal(made, mode="hang") for _ in range(PROCESSES + 1)]
            *errors, harmless = await asyncio.gather(*hanging, refusal(made))
            assert all(isinstance(error, NotInTimeError) for error in errors)
            assert harmless is None

    run(scenario)


def test_no_process_is_left() -> None:
    def children() -> set[str]:
        return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())

    async def scenario() -> None:
        before = children()
        async with trials() as made:
            await refusal(made)
            assert len(children() - before) == 1
            asked = asyncio.create_task(refusal(made, mode="hang"))
            await refusal(made)
            asked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asked
        assert children() == before

    run(scenario)
