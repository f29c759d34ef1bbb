"""One engine with several workers on one host: `--data-parallel-size`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.engine.client.engine import Engine, EngineLoad
from fastdeploy_lp.engine.client.engine_client import EngineClient
from fastdeploy_lp.engine.client.generation import Generation
from fastdeploy_lp.engine.client.pooling import Pooling
from fastdeploy_lp.engine.client.processor_states import ProcessorStatesOfAll
from fastdeploy_lp.engine.client.request_log import RequestLog
from fastdeploy_lp.engine.client.routing import Router
from fastdeploy_lp.engine.client.supervisor import WorkerHandle
from fastdeploy_lp.engine.errors import EngineRestartingError, ProcessorUnavailableError, QueueFullError
from fastdeploy_lp.engine.metrics import MetricsOfAll
from fastdeploy_lp.engine.prepare.input_processor import EngineRequest
from fastdeploy_lp.engine.prepare.preparation import RequestPreparation
from fastdeploy_lp.logits_processor import DeclaredProcessor, Selection
from fastdeploy_lp.plugins.stat_logger import StatLoggerBase


class WorkerChoice:
    """Filters workers that can run a request; the router then chooses by prompt and load."""

    def __init__(self, fd_config: FDConfig, workers: Sequence[EngineClient], router: Router) -> None:
        self._restart = fd_config.supervision_config.restart
        self._workers = workers
        self._router = router

    def choose(self, requests: Sequence[EngineRequest]) -> list[int]:
        """Returns a worker's index for each request; requests chosen together count as load for each other.

        Raises as `Engine.generate` does if a request is not accepted.
        """
        added = [0] * len(self._workers)
        chosen = []
        for each in requests:
            usable = self._usable(each.settled.sampled_with)
            loads = [
                worker.num_in_flight + more if worker in usable else None
                for worker, more in zip(self._workers, added, strict=True)
            ]
            index = self._router.choose(each.prompt.token_ids, loads)
            added[index] += each.num_sequences
            chosen.append(index)
        return chosen

    def _usable(self, selection: Selection | None) -> list[EngineClient]:
        """Returns the ready workers that have the processors in service, or all such workers if none is ready."""
        if not self._restart:
            for each in self._workers:
                each.require_alive()
        alive = [each for each in self._workers if each.is_alive]
        if selection is not None:
            alive = _in_service(alive, selection)
        return [each for each in alive if each.is_ready] or alive


def _in_service(workers: Sequence[EngineClient], selection: Selection) -> list[EngineClient]:
    """Returns the workers with a request's processors in service; raises ProcessorUnavailableError if none has them."""
    found, refusal = [], None
    for each in workers:
        try:
            each.processors.require_in_service(selection)
            found.append(each)
        except ProcessorUnavailableError as error:
            refusal = error
    if refusal is not None and not found:
        raise refusal
    return found


Work = TypeVar("Work", Generation, Pooling)
NamedStatLoggers = Sequence[tuple[str, StatLoggerBase]]


def make_engine(
    fd_config: FDConfig,
    declared: Sequence[DeclaredProcessor],
    stat_loggers: Sequence[NamedStatLoggers] = (),
    *,
    fair_queue: bool = False,
) -> Engine:
    """Builds the engine of a configuration; stat_loggers: one entry per worker, or empty.

    fair_queue: clients take turns, in the queue and in each step's share of prompt tokens.
    """
    fd_config = replace(fd_config, scheduler_config=replace(fd_config.scheduler_config, fair_queue=fair_queue))
    if fd_config.parallel_config.data_parallel_size > 1:
        return DataParallelClient(fd_config, declared, stat_loggers, fair_queue=fair_queue)
    own = stat_loggers[0] if stat_loggers else ()
    return EngineClient(fd_config, declared, stat_loggers=own, fair_queue=fair_queue)


class DataParallelClient:
    """One `EngineClient` for each of `data_parallel_size` workers, which start and end together.

    Each worker has its own queue, admission limit, supervision and statistics, so a failure of one does not affect the
    others. A request goes to one worker with all of its completions, and stays there.
    """

    def __init__(
        self,
        fd_config: FDConfig,
        declared: Sequence[DeclaredProcessor],
        stat_loggers: Sequence[NamedStatLoggers] = (),
        *,
        fair_queue: bool = False,
    ) -> None:
        size = fd_config.parallel_config.data_parallel_size
        self.fd_config = fd_config
        self.preparation = preparation = RequestPreparation(fd_config, declared)
        self.tokenizer = preparation.tokenizer
        self.message_parsers = preparation.message_parsers
        self.inputs = preparation.inputs
        self.request_templates = preparation.request_templates
        self.host = preparation.host
        cache = fd_config.cache_config
        self._router = Router(
            size,
            fd_config.scheduler_config.max_num_seqs,
            cache.block_size,
            cache.num_blocks,
            prefix_affine=cache.enable_prefix_caching,
        )
        self.workers = [
            EngineClient(
                config := config_of_rank(fd_config, rank),
                declared,
                partial(self._make_worker, rank, config),
                stat_loggers[rank] if stat_loggers else (),
                fair_queue=fair_queue,
                preparation=preparation,
            )
            for rank in range(size)
        ]
        self._choice = WorkerChoice(fd_config, self.workers, self._router)
        self.processors = ProcessorStatesOfAll(declared, [each.processors for each in self.workers])
        self.metrics = MetricsOfAll([each.metrics.registry for each in self.workers])

    @property
    def load(self) -> EngineLoad:
        """Running and waiting sequences of all workers."""
        loads = [each.load for each in self.workers]
        return EngineLoad(sum(each.running for each in loads), sum(each.waiting for each in loads))

    @property
    def request_log(self) -> RequestLog | None:
        """The request log of all workers."""
        return self.workers[0].request_log

    @request_log.setter
    def request_log(self, log: RequestLog | None) -> None:
        for each in self.workers:
            each.request_log = log

    @property
    def worker_pid(self) -> int | None:
        """The first worker's process id."""
        return self.workers[0].worker_pid

    async def start(self) -> None:
        """Starts all workers at once; raises EngineStartError if one does not start."""
        starting = [asyncio.create_task(each.start()) for each in self.workers]
        try:
            await asyncio.gather(*starting)
        finally:
            for each in starting:
                each.cancel()
            await asyncio.gather(*starting, return_exceptions=True)

    def require_started(self) -> None:
        """Raises EngineStartingError until every first worker is ready."""
        for each in self.workers:
            each.require_started()

    def require_alive(self) -> None:
        """Raises as `EngineClient.require_alive` does if no worker accepts requests."""
        self.require_started()
        if not self._alive():
            self.workers[0].require_alive()

    def require_ready(self) -> None:
        """Raises as `require_alive` does, and EngineRestartingError while no worker is ready."""
        self.require_alive()
        for each in self._alive():
            if each.is_ready:
                return
        raise EngineRestartingError("all workers are being started again; requests wait for them")

    def require_room(self, count: int, client: str) -> None:
        """Raises as `require_alive` does, and QueueFullError when no worker has room for a single sequence.

        The split of a request among workers is not known before its prompts are.
        """
        self.require_alive()
        refusal = None
        for each in self._alive():
            try:
                return each.require_room(min(count, 1), client)
            except QueueFullError as error:
                refusal = error
        if refusal is not None:
            raise refusal
        return None

    async def generate(
        self, requests: Sequence[EngineRequest], *, stream: bool = False, bounded: bool = True
    ) -> list[Generation]:
        """Sends each request to a worker, all of them or none; raises as `EngineClient.generate` does."""

        async def send(worker: EngineClient, part: Sequence[EngineRequest]) -> list[Generation]:
            return await worker.generate(part, stream=stream, bounded=bounded)

        return await self._send(requests, send)

    async def pool(self, requests: Sequence[EngineRequest], *, bounded: bool = True) -> list[Pooling]:
        """Sends each pooling prompt to a worker, all of them or none; raises as `generate` does."""

        async def send(worker: EngineClient, part: Sequence[EngineRequest]) -> list[Pooling]:
            return await worker.pool(part, bounded=bounded)

        return await self._send(requests, send)

    async def reset_processor(self, name: str) -> None:
        """Returns a logits processor to service in every worker; raises KeyError for one that is not declared."""
        for each in self.workers:
            await each.reset_processor(name)

    async def drain(self) -> None:
        """Stops accepting requests and waits until the requests in flight have ended."""
        await asyncio.gather(*(each.drain() for each in self.workers))

    async def wait_dead(self) -> str:
        """Waits until the engine has ended, and returns the cause.

        With `restart` the engine ends when no worker is left, otherwise when the first worker ends.
        """
        waiting = [asyncio.create_task(each.wait_dead()) for each in self.workers]
        first = not self.fd_config.supervision_config.restart
        try:
            done, _ = await asyncio.wait(
                waiting, return_when=asyncio.FIRST_COMPLETED if first else asyncio.ALL_COMPLETED
            )
            cause = next(each.result() for each in waiting if each in done)
        finally:
            for each in waiting:
                each.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
        self.end_requests(cause)
        return cause

    def end_requests(self, reason: str) -> None:
        """Ends every request in flight with EngineDeadError, and accepts no more."""
        for each in self.workers:
            each.end_requests(reason)

    async def shutdown(self) -> None:
        """Ends all workers; requests still in flight end with EngineDeadError."""
        await asyncio.gather(*(each.shutdown() for each in self.workers))

    def _make_worker(self, rank: int, config: FDConfig) -> WorkerHandle:
        self._router.forget(rank)
        return WorkerHandle(config)

    def _alive(self) -> list[EngineClient]:
        return [each for each in self.workers if each.is_alive]

    async def _send(
        self,
        requests: Sequence[EngineRequest],
        send: Callable[[EngineClient, Sequence[EngineRequest]], Awaitable[list[Work]]],
    ) -> list[Work]:
        """Sends each worker its part; if one refuses, closes the parts already sent."""
        self.require_alive()
        chosen = self._choice.choose(requests)
        sent: dict[int, Work] = {}
        try:
            for index in dict.fromkeys(chosen):
                places = [place for place, where in enumerate(chosen) if where == index]
                works = await send(self.workers[index], [requests[place] for place in places])
                sent |= zip(places, works, strict=True)
        except BaseException:
            for work in sent.values():
                work.close()
            raise
        return [sent[place] for place in range(len(requests))]


def config_of_rank(fd_config: FDConfig, rank: int) -> FDConfig:
    """Returns the configuration of one worker: each port is the first worker's port plus `rank`."""
    parallel, cache = fd_config.parallel_config, fd_config.cache_config
    queue_port, events_port = parallel.engine_worker_queue_port, cache.cache_queue_port
    return replace(
        fd_config,
        parallel_config=replace(
            parallel,
            data_parallel_rank=rank,
            engine_worker_queue_port=None if queue_port is None else queue_port + rank,
        ),
        cache_config=replace(cache, cache_queue_port=None if events_port is None else events_port + rank),
    )
