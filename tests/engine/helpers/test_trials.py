"""Requests are checked by authors' code in processes that may end, crash or hang without harm to anything else."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from support.processes import children_of
from support.tiny import tiny_fd_config

from fastdeploy_lp.engine.helpers.trials import NICENESS, Trials, UnsendableError
from fastdeploy_lp.logits_processor import RequestArgsError, load_processors
from fastdeploy_lp.logits_processor.chain.author_threads import NotInTimeError
from fastdeploy_lp.request.sampling_params import SamplingParams

SPECS = ["deadly=support.tried_deadly:PLUGIN", "other=support.tried_deadly:PLUGIN"]
# Beside busy processes, a check at the lowest priority starts minutes late, and none may end meanwhile.
PATIENT = 3600.0


def made_trials() -> Trials:
    config = tiny_fd_config()
    config = replace(config, model_config=replace(config.model_config, skip_tokenizer_init=True))
    return Trials(config, load_processors(SPECS), PATIENT)


@pytest.fixture(scope="module")
def shared(loop: asyncio.AbstractEventLoop) -> Iterator[Trials]:
    """On `loop`. A test continues with the process that the one before it leaves: a start is slow."""
    made = made_trials()
    yield made
    loop.run_until_complete(made.close())


async def refusal(of: Trials, name: str = "deadly", **args: str) -> Exception | None:
    """The error that refuses a request which names one processor; None if it is accepted with what it says."""
    try:
        selection = await of.selection(SamplingParams(logits_processors={name: args}), [name])
    except (RequestArgsError, NotInTimeError) as error:
        return error
    assert selection.named == {name: args}
    return None


def test_only_the_first_process_loads_at_the_servers_priority_and_before_the_first_request(
    shared: Trials, loop: asyncio.AbstractEventLoop
) -> None:
    own = os.getpriority(os.PRIO_PROCESS, 0)

    async def scenario() -> None:
        # None is left of another test.
        await shared.close()
        shared.start()
        assert shared._first is not None
        await shared._first
        (first,) = shared._pool.idle
        for is_first, at_import in ((True, own), (False, max(own, NICENESS))):
            assert f"imported at niceness {at_import}" in str(await refusal(shared, mode="tell"))
            (process,) = shared._pool.idle
            assert (process is first) == is_first
            threads = [int(each) for each in os.listdir(f"/proc/{process.pid}/task")]
            assert {os.getpriority(os.PRIO_PROCESS, each) for each in threads} == {max(own, NICENESS)}
            if is_first:
                # One that ends between two requests harms neither.
                os.kill(process.pid, signal.SIGKILL)
                await process.status()

    loop.run_until_complete(scenario())


def test_a_trial_that_ends_its_process_is_that_requests_error_and_the_next_one_goes_on(
    shared: Trials, loop: asyncio.AbstractEventLoop
) -> None:
    async def scenario() -> None:
        for mode, when, status in (("exit", "call", "status 7"), ("segfault", "read", "status -11")):
            error = await refusal(shared, mode=mode, when=when)
            assert isinstance(error, RequestArgsError)
            assert error.path == "logits_processors.deadly"
            assert error.reason.startswith("deadly: ")
            assert status in error.reason
        assert await refusal(shared) is None
        assert "these arguments do not fit" in str(await refusal(shared, mode="refuse"))
        assert await refusal(shared, mode="refuse", when="call") is not None
        assert "mode" in str(await refusal(shared, mode="dance"))

    loop.run_until_complete(scenario())


def children() -> set[int]:
    return set(children_of())


def test_held_checks_of_one_processor_hold_up_no_other_and_end_with_their_requests(
    shared: Trials, loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = shared._pool._slow_places
    monkeypatch.setattr(places, "_most_each", 1)

    async def scenario() -> None:
        before = children() - {process.pid for process in shared._pool.idle}
        held = asyncio.create_task(refusal(shared, mode="hang"))
        deadline = time.monotonic() + PATIENT
        while places.num_taken < 1:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        assert "takes long, as it does for other requests" in str(await refusal(shared, mode="hang"))
        assert await refusal(shared, "other") is None
        assert len(children() - before) == 2
        assert not held.done()
        held.cancel()
        with pytest.raises(asyncio.CancelledError):
            await held
        assert await refusal(shared) is None
        assert len(children() - before) == 1
        assert places.num_taken == 0

    loop.run_until_complete(scenario())


def test_trials_that_hang_end_in_time_and_leave_room_for_others(
    shared: Trials, loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "_timeout", 0.5)

    async def scenario() -> None:
        before = children() - {process.pid for process in shared._pool.idle}
        error = await refusal(shared, mode="hang")
        assert isinstance(error, NotInTimeError)
        assert "deadly: its own code took longer than 0.5 s" in str(error)
        assert shared._pool._slow_places.num_taken == 0
        assert not children() - before

    loop.run_until_complete(scenario())


def test_values_that_no_message_can_hold_are_told_apart(shared: Trials, loop: asyncio.AbstractEventLoop) -> None:
    unsendable = SamplingParams(logits_processors={"deadly": {"mode": object()}})
    with pytest.raises(UnsendableError):
        loop.run_until_complete(shared.selection(unsendable, ["deadly"]))


def test_a_process_that_cannot_start_makes_the_processors_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastdeploy_lp.engine.helpers.trials.MODULE", "no.such.module")

    async def scenario() -> None:
        made = made_trials()
        made.start()
        assert isinstance(await refusal(made), NotInTimeError)
        await made.close()

    asyncio.run(scenario())
