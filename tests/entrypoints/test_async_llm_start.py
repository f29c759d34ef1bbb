"""`AsyncLLM` from its options to its end: the first request starts it once, and no worker is left behind."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from support.chat import MODEL
from support.documents import DummyLogitsProcessor
from support.processes import children_of, process_exists
from support.server import wait_until
from support.tiny import LONG_CONTEXT, write_tiny_checkpoint

from fastdeploy_lp import AsyncEngineArgs, AsyncLLM, EngineArgs, FDConfig, LogitsProcessor, SamplingParams
from fastdeploy_lp.engine.errors import EngineDeadError, EngineStartError

ENDLESS = SamplingParams(temperature=0, max_tokens=2000, ignore_eos=True)


def test_what_no_request_is_for_needs_start() -> None:
    async def use() -> None:
        llm = AsyncLLM(MODEL, logits_processors=[DummyLogitsProcessor])
        with pytest.raises(RuntimeError, match="start"):
            _ = llm.logits_processors
        with pytest.raises(RuntimeError, match="start"):
            await llm.reset_logits_processor("DummyLogitsProcessor")
        llm.abort("nobody")
        await llm.shutdown()
        with pytest.raises(EngineDeadError, match="shut down"):
            await anext(llm.generate("Hello"))

    asyncio.run(use())


def test_the_first_requests_start_one_worker_and_shutdown_ends_it_and_the_requests(tmp_path: Path) -> None:
    class Local(DummyLogitsProcessor):
        """A class that no module has."""

    async def use() -> int:
        model = str(write_tiny_checkpoint(tmp_path, context=LONG_CONTEXT))
        llm = AsyncLLM.from_engine_args(AsyncEngineArgs(model=model, logits_processors=[Local]))

        async def tokens(target: int) -> list[int]:
            forced = SamplingParams(max_tokens=3, extra_args={"target_token": target})
            answer = llm.generate(request_id=f"r{target}", prompt="the dog", sampling_params=forced)
            *_, output = [each async for each in answer]
            return output.outputs.token_ids

        cancelled = asyncio.ensure_future(tokens(50))
        waiting = [asyncio.ensure_future(tokens(target)) for target in range(60, 65)]
        vector = asyncio.ensure_future(llm.embed("the dog"))
        await asyncio.sleep(0)
        # The one that began the start leaves; the others still wait for it.
        cancelled.cancel()
        assert await asyncio.gather(*waiting) == [[target] * 3 for target in range(60, 65)]
        assert (await vector).outputs.embedding
        assert cancelled.cancelled()
        await llm.start()
        await llm.start()
        (worker,) = workers() - before
        running = llm.generate("Hello", ENDLESS)
        await anext(running)
        await llm.shutdown()
        await llm.shutdown()
        with pytest.raises(EngineDeadError):
            async for _ in running:
                pass
        with pytest.raises(EngineDeadError):
            await tokens(60)
        return worker

    before = workers()
    worker = asyncio.run(use())
    wait_until(lambda: not process_exists(worker), 60.0)


def test_wrong_options_are_told_at_once() -> None:
    with pytest.raises(ValueError, match="options are"):
        AsyncLLM(MODEL, max_sequences=3)
    with pytest.raises(ValueError, match="logits_processors: 'nope'"):
        AsyncLLM.from_engine_args(EngineArgs(model=MODEL, logits_processors=["nope"]))


def workers() -> set[int]:
    """Workers of this process, without the processes in which authors' code checks requests."""
    return set(children_of(program="fastdeploy_lp.worker"))


def test_a_start_that_fails_fails_the_requests_that_wait_for_it_and_leaves_no_worker(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One of two workers is ready when the other one fails."""
    caplog.set_level(logging.INFO, "fastdeploy_lp")
    told = tmp_path / "told"

    class FailsInTheSecond(LogitsProcessor):
        """Waits until the test has seen the first one."""

        def __init__(self, fd_config: FDConfig) -> None:
            if fd_config.parallel_config.data_parallel_rank:
                wait_until(told.exists, 60.0)
                raise ValueError("not this one")

        def update_state(self, share_inputs: Any) -> None:
            """Nothing to know."""

        def apply(self, logits: Any) -> Any:
            return logits

    async def start() -> None:
        llm = AsyncLLM(str(write_tiny_checkpoint(tmp_path)), logits_processors=[FailsInTheSecond], data_parallel_size=2)
        starting = [
            asyncio.ensure_future(each) for each in (llm.start(), *(anext(llm.generate("Hi")) for _ in range(3)))
        ]
        while not any("ready, model loaded" in record.message for record in caplog.records):
            await asyncio.sleep(0.05)
        told.touch()
        errors = await asyncio.gather(*starting, return_exceptions=True)
        assert [type(error) for error in errors] == [EngineStartError] * 4
        assert all("not this one" in str(error) for error in errors)
        await llm.shutdown()

    before = set(children_of())
    asyncio.run(asyncio.wait_for(start(), 600))
    assert not set(children_of()) - before
