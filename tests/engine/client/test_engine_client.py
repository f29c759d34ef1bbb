"""The engine client with a worker that says what a test wants it to say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest
from support.tiny import tiny_fd_config, write_tiny_checkpoint

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.engine.client.engine import EngineLoad
from fastdeploy_lp.engine.client.engine_client import EngineClient
from fastdeploy_lp.engine.client.supervisor import WorkerHandle
from fastdeploy_lp.engine.errors import RequestFailedError
from fastdeploy_lp.engine.prepare.input_processor import EngineRequest, Prompt, Settled
from fastdeploy_lp.logits_processor.chain.calls import Culprit
from fastdeploy_lp.logits_processor.quarantine import Quarantine
from fastdeploy_lp.messages import (
    AddRequest,
    FromWorker,
    SequenceStep,
    StepOutputs,
    TokenLogprobs,
    ToWorker,
    WorkerReady,
)
from fastdeploy_lp.request.pooling_params import PoolingParams
from fastdeploy_lp.request.sampling_params import SamplingParams
from fastdeploy_lp.stats import SchedulerStats

SECONDS = 30.0


class SaysAnything:
    """A worker of this process: `said` is what it says next, None that it has ended; `sent` what it was told."""

    pid = 1
    how_it_ended = "the worker process ended with status 1"

    def __init__(self, may_start: asyncio.Event) -> None:
        self._may_start = may_start
        self.said: asyncio.Queue[FromWorker | None] = asyncio.Queue()
        self.sent: list[ToWorker] = []

    async def start(self, _: dict[str, bytes], quarantine: Quarantine) -> WorkerReady:
        await self._may_start.wait()
        return WorkerReady(0.0)

    def send(self, message: ToWorker) -> None:
        self.sent.append(message)

    async def receive(self) -> FromWorker | None:
        return await self.said.get()

    def culprits(self, names: Sequence[str]) -> tuple[Culprit, ...]:
        return ()

    def kill(self) -> None:
        """There is no process."""

    async def stop(self) -> None:
        """There is no process."""

    def says_of(self, index: int, **fields: Any) -> None:
        """A step of the sequence that it was given as the `index`-th."""
        added = [each for each in self.sent if isinstance(each, AddRequest)][index]
        self.said.put_nowait(StepOutputs([SequenceStep(added.request_id, **fields)], SchedulerStats(1)))


@dataclass
class Running:
    """An engine, its workers in the order in which they were made, and what lets further ones start."""

    client: EngineClient
    workers: list[SaysAnything]
    may_start: asyncio.Event

    async def ask(self, request_id: str, **params: Any) -> Any:
        prompt = Prompt([1, 2], None)
        settled = await self.client.preparation.settle(SamplingParams(max_tokens=5, **params), prompt)
        (generation,) = await self.client.generate([EngineRequest(request_id, prompt, settled)])
        return generation

    def metric(self, name: str) -> float | None:
        return self.client.metrics.registry.get_sample_value(f"fastdeploy_lp:{name}")


@pytest.fixture
def fd_config(tmp_path: Path) -> FDConfig:
    config = tiny_fd_config()
    directory = str(write_tiny_checkpoint(tmp_path))
    supervision = replace(config.supervision_config, restart=True)
    return replace(
        config, model_config=replace(config.model_config, directory=directory), supervision_config=supervision
    )


@asynccontextmanager
async def running(fd_config: FDConfig) -> AsyncIterator[Running]:
    workers: list[SaysAnything] = []
    may_start = asyncio.Event()
    may_start.set()

    def make() -> WorkerHandle:
        workers.append(SaysAnything(may_start))
        return cast(WorkerHandle, workers[-1])

    client = EngineClient(fd_config, [], make)
    await client.start()
    try:
        yield Running(client, workers, may_start)
    finally:
        await client.shutdown()


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, SECONDS))


async def until_lost(engine: Running) -> None:
    """Until the engine knows that its worker is gone, and has made the next one."""
    known = len(engine.workers)
    engine.may_start.clear()
    engine.workers[-1].said.put_nowait(None)
    while len(engine.workers) == known:
        await asyncio.sleep(0)


def test_an_output_that_cannot_be_read_ends_its_request_alone(
    fd_config: FDConfig, caplog: pytest.LogCaptureFixture
) -> None:
    async def ask() -> None:
        async with running(fd_config) as engine:
            bad, good = await engine.ask("bad", logprobs=1), await engine.ask("good")
            engine.workers[0].says_of(0, token_ids=[5, 6], logprobs=[TokenLogprobs([5], [0.0], 1)])
            engine.workers[0].says_of(1, token_ids=[7], finish_reason="length")
            with pytest.raises(RequestFailedError, match="the output cannot be read: IndexError"):
                await bad.result()
            assert (await good.result()).outputs.token_ids == [7]
            assert engine.metric("request_failed_total") == 1
            assert engine.client.num_in_flight == 0
        assert "the output of request 'bad' cannot be read" in caplog.text

    run(ask())


def test_the_load_counts_requests_that_the_worker_has_not_reported(fd_config: FDConfig) -> None:
    async def ask() -> None:
        async with running(fd_config) as engine:
            first = await engine.ask("first")
            assert engine.client.load == EngineLoad(0, 1)
            engine.workers[0].says_of(0, token_ids=[5])
            second = await engine.ask("second")
            while not engine.client.load.running:
                await asyncio.sleep(0)
            assert engine.client.load == EngineLoad(1, 1)
            first.close()
            second.close()
            assert engine.client.load == EngineLoad(1, 0)

    run(ask())


def test_requests_that_wait_for_a_worker_are_told_as_waiting(fd_config: FDConfig) -> None:
    async def ask() -> None:
        async with running(fd_config) as engine:
            first = await engine.ask("first")
            await until_lost(engine)
            assert engine.metric("num_requests_waiting") == 1
            second = await engine.ask("second")
            pooled = EngineRequest("third", Prompt([1], None), Settled(pooling=PoolingParams()))
            (third,) = await engine.client.pool([pooled])
            assert engine.client.load == EngineLoad(0, 3)
            third.close()
            assert engine.client.load == EngineLoad(0, 2)
            engine.may_start.set()
            while not engine.workers[1].sent:
                await asyncio.sleep(0)
            for index in range(2):
                engine.workers[1].says_of(index, token_ids=[index], finish_reason="length")
            answers = [await first.result(), await second.result()]
            assert [each.outputs.token_ids for each in answers] == [[0], [1]]

    run(ask())


def test_a_request_that_two_workers_were_lost_with_is_given_up(fd_config: FDConfig) -> None:
    async def ask() -> None:
        async with running(fd_config) as engine:
            asked = await engine.ask("poison")
            await until_lost(engine)
            engine.may_start.set()
            while not engine.workers[1].sent:
                await asyncio.sleep(0)
            engine.workers[1].said.put_nowait(None)
            with pytest.raises(RequestFailedError, match="2 workers ended while this request ran"):
                await asked.result()
            assert engine.metric("request_replays_total") == 1
            assert engine.metric("request_lost_total") == 1

    run(ask())
