"""Processors' own checks of requests: beside the event loop, bounded in time, and every exception the request's own."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from support.held import ERRORS
from support.tiny import tiny_fd_config

from fastdeploy_lp.config import StructuredOutputsConfig
from fastdeploy_lp.engine.errors import InvalidRequestError, ProcessorUnavailableError
from fastdeploy_lp.engine.prepare.input_processor import Prompt, Settled
from fastdeploy_lp.engine.prepare.preparation import RequestPreparation
from fastdeploy_lp.logits_processor import load_processors
from fastdeploy_lp.request.sampling_params import SamplingParams

TURNS = 100
NAMES = ["HeldParams", "HeldCheck"]
SPECS = [*(f"support.held:{name}" for name in NAMES), "LogitBiasLogitsProcessor"]
PROMPT = Prompt([1], None)
BIASED = SamplingParams(logits_processors={"LogitBiasLogitsProcessor": {"logit_bias": {"1": 2.0}}})


@asynccontextmanager
async def preparing(timeout: float = 120.0) -> AsyncIterator[RequestPreparation]:
    config = tiny_fd_config(policy=StructuredOutputsConfig(code_timeout=timeout))
    config = replace(config, model_config=replace(config.model_config, skip_tokenizer_init=True))
    preparation = RequestPreparation(config, load_processors(SPECS))
    try:
        yield preparation
    finally:
        await preparation.close()


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as made:
        yield made


@pytest.fixture(scope="module")
def shared(runner: asyncio.Runner) -> Iterator[RequestPreparation]:
    """On the loop of `runner`: its processes take a second each to start."""
    entered = preparing()
    yield runner.run(entered.__aenter__())
    runner.run(entered.__aexit__(None, None, None))


def asking(name: str, **params: str) -> SamplingParams:
    return SamplingParams(logits_processors={name: params})


def new_gate(folder: Path) -> Path:
    gate = folder / "gate"
    os.mkfifo(gate)
    return gate


@pytest.mark.parametrize("name", NAMES)
def test_the_loop_serves_others_while_a_check_is_held(
    name: str, tmp_path: Path, shared: RequestPreparation, runner: asyncio.Runner
) -> None:
    gate = new_gate(tmp_path)

    async def scenario() -> Settled:
        asked = asyncio.create_task(shared.settle(asking(name, gate=str(gate)), PROMPT))
        # Returns when the check has opened the pipe for reading.
        writer = await asyncio.to_thread(gate.open, "wb")
        for _ in range(TURNS):
            await shared.settle(BIASED, PROMPT)
        assert not asked.done()
        writer.close()
        return await asked

    assert name in (runner.run(scenario()).selection.named or {})


def test_a_check_that_does_not_return_makes_its_processor_unavailable(tmp_path: Path) -> None:
    gate = new_gate(tmp_path)

    async def scenario() -> None:
        async with preparing(0.5) as preparation:
            for name in NAMES:
                with pytest.raises(ProcessorUnavailableError, match=f"logits processor {name}: its own code"):
                    await preparation.settle(asking(name, gate=str(gate)), PROMPT)
            await preparation.settle(BIASED, PROMPT)

    asyncio.run(scenario())


def test_whatever_a_check_raises_refuses_its_request_alone(shared: RequestPreparation, runner: asyncio.Runner) -> None:
    async def scenario() -> None:
        for name in NAMES:
            for error in ERRORS:
                with pytest.raises(InvalidRequestError, match=error) as refused:
                    await shared.settle(asking(name, error=error), PROMPT)
                assert (refused.value.param or "").startswith(f"logits_processors.{name}")
            await shared.settle(asking(name), PROMPT)

    runner.run(scenario())


def test_a_client_that_leaves_ends_no_other_check(
    tmp_path: Path, shared: RequestPreparation, runner: asyncio.Runner
) -> None:
    gate = new_gate(tmp_path)

    async def scenario() -> None:
        left = asyncio.create_task(shared.settle(asking("HeldCheck", gate=str(gate)), PROMPT))
        writer = await asyncio.to_thread(gate.open, "wb")
        stays = asyncio.create_task(shared.settle(asking("HeldCheck"), PROMPT))
        left.cancel()
        with pytest.raises(asyncio.CancelledError):
            await left
        await stays
        writer.close()

    runner.run(scenario())
