"""Requests are checked by authors' code in processes that may end, crash or hang without harm to anything else."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.tiny import tiny_fd_config

from fastdeploy_lp.engine.helpers.trials import NICENESS, Trials, UnsendableError
from fastdeploy_lp.logits_processor import RequestArgsError, load_processors
from fastdeploy_lp.logits_processor.chain.author_threads import NotInTimeError
from fastdeploy_lp.request.sampling_params import SamplingParams

SPECS = ["deadly=support.tried_deadly:PLUGIN", "other=support.tried_deadly:PLUGIN"]
PATIENT = 120.0


@asynccontextmanager
async def trials(timeout: float = PATIENT) -> AsyncIterator[Trials]:
    config = tiny_fd_config()
    config = replace(config, model_config=replace(config.model_config, skip_tokenizer_init=True))
    made = Trials(config, load_processors(SPECS), timeout)
    try:
        yield made
    finally:
        await made.close()


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(scenario())


async def refusal(of: Trials, name: str = "deadly", **args: str) -> Exception | None:
    """The error that refuses a request which names one processor; None if it is accepted with what it says."""
    try:
        selection = await of.selection(SamplingParams(logits_processors={name: args}), [name])
    except (RequestArgsError, NotInTimeError) as error:
        return error
    assert selection.named == {name: args}
    return None


def test_only_the_first_process_loads_at_the_servers_priority_and_before_the_first_request() -> None:
    own = os.getpriority(os.PRIO_PROCESS, 0)

    async def scenario() -> None:
        async with trials() as made:
            made.start()
            assert made._first is not None
            await made._first
            (first,) = made._pool.idle
            for is_first, at_import in ((True, own), (False, max(own, NICENESS))):
                assert f"imported at niceness {at_import}" in str(await refusal(made, mode="tell"))
                (process,) = made._pool.idle
                assert (process is first) == is_first
                threads = [int(each) for each in os.listdir(f"/proc/{process.pid}/task")]
                assert {os.getpriority(os.PRIO_PROCESS, each) for each in threads} == {max(own, NICENESS)}
                await process.end()

    run(scenario)


def test_a_trial_that_ends_its_process_is_that_requests_error_and_the_next_one_goes_on() -> None:
    async def scenario() -> None:
        async with trials() as made:
            for mode, when, status in (("exit", "call", "status 7"), ("segfault", "read", "status -11")):
                error = await refusal(made, mode=mode, when=when)
                assert isinstance(error, RequestArgsError)
                assert error.path == "logits_processors.deadly"
                assert error.reason.startswith("deadly: ")
                assert status in error.reason
            assert await refusal(made) is None
            assert "these arguments do not fit" in str(await refusal(made, mode="refuse"))
            assert await refusal(made, mode="refuse", when="call") is not None
            assert "mode" in str(await refusal(made, mode="dance"))
            # Also when it ended between two requests.
            (process,) = made._pool.idle
            os.kill(process.pid, 9)
            await process.status()
            assert await refusal(made) is None

    run(scenario)


def test_trials_that_hang_end_in_time_and_leave_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastdeploy_lp.engine.helpers.trials.SLOW_PROCESSES_EACH", 1)

    async def scenario() -> None:
        async with trials(timeout=0.5) as made:
            for _ in range(2):
                error = await refusal(made, mode="hang")
                assert isinstance(error, NotInTimeError)
                assert "deadly: its own code took longer than 0.5 s" in str(error)

    run(scenario)


def test_held_checks_of_one_processor_hold_up_no_other_and_end_with_their_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fastdeploy_lp.engine.helpers.trials.SLOW_PROCESSES_EACH", 1)

    def children() -> set[str]:
        return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())

    async def scenario() -> None:
        before = children()
        async with trials() as made:
            held = asyncio.create_task(refusal(made, mode="hang"))
            deadline = time.monotonic() + PATIENT
            while made._pool._slow_places.num_taken < 1:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.05)
            assert "takes long, as it does for other requests" in str(await refusal(made, mode="hang"))
            assert await refusal(made, "other") is None
            assert len(children() - before) == 2
            assert not held.done()
            held.cancel()
            with pytest.raises(asyncio.CancelledError):
                await held
            assert await refusal(made) is None
            assert len(children() - before) == 1
        assert children() == before

    run(scenario)


def test_values_that_no_message_can_hold_are_told_apart() -> None:
    async def scenario() -> None:
        async with trials() as made:
            with pytest.raises(UnsendableError):
                await made.selection(SamplingParams(logits_processors={"deadly": {"mode": object()}}), ["deadly"])

    run(scenario)


def test_a_process_that_cannot_start_makes_the_processors_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastdeploy_lp.engine.helpers.trials.MODULE", "no.such.module")

    async def scenario() -> None:
        async with trials() as made:
            made.start()
            assert isinstance(await refusal(made), NotInTimeError)

    run(scenario)
