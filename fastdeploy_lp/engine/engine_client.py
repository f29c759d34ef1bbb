"""The API process's client of one worker: sends requests, returns deltas, supervises the worker."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import cloudpickle

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.engine.completion import ReplayError, completions_of
from fastdeploy_lp.engine.engine import EngineLoad
from fastdeploy_lp.engine.engine_stats import EngineStats, sequence_stats, step_came
from fastdeploy_lp.engine.errors import (
    EngineDeadError,
    EngineDrainingError,
    EngineRestartingError,
    EngineStartingError,
    QueueFullError,
    RequestFailedError,
    RequestTimeoutError,
    WorkerLostError,
)
from fastdeploy_lp.engine.generation import Generation
from fastdeploy_lp.engine.host_threads import Run, run_here
from fastdeploy_lp.engine.in_flight import InFlight
from fastdeploy_lp.engine.input_processor import EngineRequest, Prompt, Settled
from fastdeploy_lp.engine.metrics import PrometheusStatLogger, ReliabilityMetrics
from fastdeploy_lp.engine.outbox import make_outbox
from fastdeploy_lp.engine.pace import Pace
from fastdeploy_lp.engine.pooling import Pooling
from fastdeploy_lp.engine.preparation import RequestPreparation
from fastdeploy_lp.engine.processor_states import ProcessorStates
from fastdeploy_lp.engine.request_log import RequestLog
from fastdeploy_lp.engine.stat_loggers import LoggingStatLogger, StatLoggers
from fastdeploy_lp.engine.step_failure import failure_of
from fastdeploy_lp.engine.supervisor import WorkerSupervisor
from fastdeploy_lp.engine.waiting_room import WaitingRoom
from fastdeploy_lp.engine.work import Work
from fastdeploy_lp.engine.worker_handle import WorkerHandle
from fastdeploy_lp.engine.worker_loss import WorkerLoss, ended_by
from fastdeploy_lp.logits_processor import DeclaredProcessor
from fastdeploy_lp.logits_processor.stats import Quarantine
from fastdeploy_lp.messages import (
    AbortRequests,
    AddRequest,
    FromWorker,
    ResetProcessor,
    SequenceStep,
    StepOutputs,
    WorkerReady,
)
from fastdeploy_lp.plugins.stat_logger import StatLoggerBase
from fastdeploy_lp.sampling_params import SamplingParams
from fastdeploy_lp.stats import ABORT, ERROR, FinishedRequestStats, IterationStats

logger = logging.getLogger(__name__)
Begun = TypeVar("Begun", Generation, Pooling)


class EngineClient:
    """Runs requests on one worker process at a time; used from one event loop.

    make_worker: returns a worker that is not started; by default a `WorkerHandle`.
    stat_loggers: by name; they record the same events as the engine's two built-in loggers.
    fair_queue: clients take turns instead of first come, first served.
    preparation: shared by several clients, or None for a separate one.
    """

    def __init__(
        self,
        fd_config: FDConfig,
        declared: Sequence[DeclaredProcessor],
        make_worker: Callable[[], WorkerHandle] | None = None,
        stat_loggers: Sequence[tuple[str, StatLoggerBase]] = (),
        *,
        fair_queue: bool = False,
        preparation: RequestPreparation | None = None,
    ) -> None:
        self.fd_config = fd_config
        self._preparation = preparation or RequestPreparation(fd_config, declared)
        self.tokenizer = self._preparation.tokenizer
        self.message_parsers = self._preparation.message_parsers
        self.inputs = self._preparation.inputs
        self.request_templates = self._preparation.request_templates
        self.host = self._preparation.host
        self.processors = ProcessorStates(declared)
        self.metrics = PrometheusStatLogger(fd_config)
        self.reliability = ReliabilityMetrics(self.metrics.registry)
        rank = fd_config.parallel_config.data_parallel_rank
        own = [("prometheus", self.metrics), ("logging", LoggingStatLogger(fd_config, rank))]
        self.stats = EngineStats(self.processors, StatLoggers([*own, *stat_loggers], rank))
        self._load = EngineLoad()
        # Set by the caller that wants requests recorded.
        self.request_log: RequestLog | None = None
        self._declared = list(declared)
        make = make_worker or partial(WorkerHandle, fd_config)
        names = [processor.name for processor in declared]
        self._supervisor = WorkerSupervisor(fd_config.supervision_config, make, self, names)
        self._quarantine_at_start = Quarantine()
        self._fair_queue = fair_queue
        self._outbox = make_outbox(self._supervisor.send, fd_config.scheduler_config, fair=fair_queue)
        self._room = WaitingRoom(fd_config.scheduler_config, self._outbox, fair=fair_queue)
        self._in_flight = InFlight()
        self._supervising: asyncio.Task[None] | None = None
        self._serials = self._preparation.serials
        self._draining = False
        self._dead: str | None = None
        self._ended = asyncio.Event()
        self._quiet = asyncio.Event()

    async def start(self) -> None:
        """Starts the worker and waits until it is ready; raises EngineStartError."""
        # Only classes given as objects are sent; the worker imports the others by their SPEC.
        objects = {p.spec: cloudpickle.dumps(p.found) for p in self._declared if p.given_as_object}
        ready = await self._supervisor.start(objects)
        logger.info("worker %s ready, model loaded in %.1f s", self.worker_pid, ready.load_seconds)
        self.processors.set_argmax_invariant(ready.argmax_invariant)
        self._outbox.open()
        self._preparation.start()
        self._supervising = asyncio.create_task(self._supervise())
        self.stats.loggers.log_engine_initialized()
        self.stats.loggers.start(self.fd_config.observability_config.log_stats_interval)

    def require_started(self) -> None:
        """Raises EngineStartingError until the first worker is ready; that worker may have ended since."""
        if self._dead is None and self._supervising is None:
            raise EngineStartingError("the model is still being loaded; try again later")

    def require_alive(self) -> None:
        """Raises EngineStartingError, EngineDeadError or EngineDrainingError while no requests are accepted."""
        self.require_started()
        if self._dead is not None:
            raise EngineDeadError(self._dead)
        if self._draining:
            raise EngineDrainingError("the server is shutting down; another one may take the request")

    def require_ready(self) -> None:
        """Raises as `require_alive` does, and EngineRestartingError while no worker is ready."""
        self.require_alive()
        if not self._outbox.is_open:
            raise EngineRestartingError("the worker is being started again; requests wait for it")

    @property
    def load(self) -> EngineLoad:
        """Running and waiting sequences; all of them wait while no worker is ready."""
        return self._load if self._outbox.is_open else EngineLoad(0, self.num_in_flight)

    @property
    def is_alive(self) -> bool:
        """True if requests are accepted, even if they must wait for a worker."""
        return self._dead is None and not self._draining

    @property
    def is_ready(self) -> bool:
        """True if a worker accepts requests."""
        return self.is_alive and self._outbox.is_open

    @property
    def worker_pid(self) -> int | None:
        """The worker's process id."""
        return self._supervisor.pid

    async def settle(self, params: SamplingParams, prompt: Prompt, client: str = "") -> Settled:
        """Result of `inputs.settle`, with its grammar checked; raises as `RequestPreparation.settle` does."""
        return await self._preparation.settle(params, prompt, client)

    async def settle_each(
        self, params: SamplingParams, prompts: Sequence[Prompt], client: str = "", inside: Run = run_here
    ) -> list[Settled]:
        """The same for all prompts of a request; the request is checked once."""
        return await self._preparation.settle_each(params, prompts, client, inside)

    async def generate(
        self, requests: Sequence[EngineRequest], *, stream: bool = False, bounded: bool = True
    ) -> list[Generation]:
        """Sends requests to the worker, all of them or none.

        Raises as `require_alive` does, ProcessorUnavailableError if a request uses a logits processor in quarantine
        and, if `bounded`, QueueFullError if too many sequences already wait.
        """
        return await self._begin(requests, partial(self._generation, stream=stream), bounded=bounded)

    async def pool(self, requests: Sequence[EngineRequest], *, bounded: bool = True) -> list[Pooling]:
        """Sends prompts to pool to the worker, all of them or none; raises as `generate` does."""
        return await self._begin(requests, self._pooling, bounded=bounded)

    async def _begin(
        self, requests: Sequence[EngineRequest], make: Callable[[EngineRequest], Begun], *, bounded: bool
    ) -> list[Begun]:
        """Accepts all of the requests or none, and yields to the event loop between pieces."""
        self.require_alive()
        # Prompts of one request body share one selection.
        sampled = {id(each.settled.selection): each.settled.sampled_with for each in requests}
        for selection in sampled.values():
            if selection is not None:
                self.processors.require_in_service(selection)
        count = sum(each.num_sequences for each in requests)
        if bounded and requests:
            self.require_room(count, requests[0].client)
        pace, begun = Pace(), list[Begun]()
        with self._room.entry(count) as entry:
            # Build all of them before sending the first, so that a failure to build one leaves nothing to undo.
            for request in requests:
                begun.append(make(request))
                await pace.rest()
            try:
                for request, work in zip(requests, begun, strict=True):
                    if self._dead is not None:
                        raise EngineDeadError(self._dead)
                    entry.count -= request.num_sequences
                    await self._send(request, work, pace)
                    await pace.rest()
            except BaseException:
                for work in begun:
                    work.close()
                raise
        return begun

    async def reset_processor(self, name: str) -> None:
        """Returns a quarantined logits processor to service; raises KeyError for a name that is not declared."""
        self.processors.reset(name)
        if self._outbox.is_open:
            self._supervisor.send(ResetProcessor(name))

    async def drain(self) -> None:
        """Stops accepting requests and waits until the requests in flight have ended."""
        self._draining = True
        self._note_quiet()
        await self._quiet.wait()

    async def wait_dead(self) -> str:
        """Waits until no worker is left and none will follow; returns the cause."""
        await self._ended.wait()
        return self._dead or ""

    async def shutdown(self) -> None:
        """Ends the worker; requests still in flight end with EngineDeadError."""
        self.end_requests("the server is shutting down")
        if self._supervising is not None:
            self._supervising.cancel()
            await asyncio.gather(self._supervising, return_exceptions=True)
        await self.stats.loggers.stop()
        await self._preparation.close()
        await self._supervisor.stop()

    def end_requests(self, reason: str) -> None:
        """Ends every request in flight with EngineDeadError, and accepts no more."""
        if self._dead is not None:
            return
        self._outbox.close()
        self._dead = reason
        running = self._in_flight.works
        self.stats.died([each for work in running for each in self._forget(work, ERROR)], num_waiting=0)
        for work in running:
            work.fail(EngineDeadError(reason))
        self._quiet.set()
        self._ended.set()

    @property
    def is_busy(self) -> bool:
        """True if any sequences are in flight."""
        return bool(self._in_flight)

    @property
    def num_in_flight(self) -> int:
        """Number of sequences in the worker or waiting for it."""
        return len(self._in_flight)

    def worker_said(self, message: FromWorker) -> None:
        """Handles a message of the worker."""
        if isinstance(message, StepOutputs):
            self._take(message)

    @property
    def quarantine(self) -> Quarantine:
        """The processors that the next worker keeps out of service."""
        self._quarantine_at_start = self.processors.quarantine
        return self._quarantine_at_start

    def worker_lost(self, loss: WorkerLoss) -> None:
        """Handles the loss of the worker: requests run again on the next one, except possible causes of the crash."""
        self._outbox.close()
        self.processors.restart(loss)
        if not self.fd_config.supervision_config.restart:
            return
        ended: list[FinishedRequestStats] = []
        for work, error in ended_by(loss, self._in_flight.works, self._may_have_run()):
            ended += self._forget(work, ERROR)
            self.reliability.lost.inc()
            work.fail(error)
        for work in self._in_flight.works:
            work.begin_again()
        self.stats.died(ended, self.num_in_flight)

    def worker_ready(self, ready: WorkerReady) -> None:
        """Sends a new worker the previous worker's sequences and newer ones."""
        self.processors.set_argmax_invariant(ready.argmax_invariant)
        for name in self.processors.quarantine.lifted_since(self._quarantine_at_start):
            self._supervisor.send(ResetProcessor(name))
        self.reliability.worker_restarts.inc()
        self.reliability.replays.inc(len(self._outbox.sent))
        self._outbox.open()

    async def _supervise(self) -> None:
        try:
            cause = await self._supervisor.run()
        except Exception as error:
            logger.exception("the engine cannot go on")
            cause = f"{type(error).__name__}: {error}"
        logger.error("engine down: %s", cause)
        self.end_requests(cause)

    def _may_have_run(self) -> list[Work]:
        """Requests possibly running: the oldest `max_num_seqs` sequences, since admission is FIFO."""
        return self._in_flight.works_of(self._outbox.sent[: self.fd_config.scheduler_config.max_num_seqs])

    def _take(self, outputs: StepOutputs) -> None:
        outputs.num_waiting += self._outbox.num_waiting
        self._load = EngineLoad(outputs.num_running, outputs.num_waiting)
        if outputs.processors is not None:
            self.processors.update(outputs.processors)
        if self._fair_queue:
            self._outbox.charge(outputs.steps)
        iteration = IterationStats(time.monotonic(), sum(len(step.token_ids) for step in outputs.steps))
        for step in outputs.steps:
            if (found := self._in_flight.find(step.request_id)) is not None:
                self._take_step(step, *found, iteration)
        self.stats.step(outputs, iteration)

    def _take_step(self, step: SequenceStep, work: Work, index: int, iteration: IterationStats) -> None:
        if step.error is not None:
            iteration.finished_requests += self._forget(work, ERROR)
            work.fail(failure_of(step))
            return
        times, sequence = work.times[index], work.sequences[index]
        if times.last_token is None:
            times.scheduled = step.scheduled_at
            sequence.num_cached_tokens = step.num_cached_tokens or 0
        step_came(step, times, iteration)
        try:
            work.take(index, step)
        except Exception as error:  # noqa: BLE001 - what a tokenizer makes of one request's tokens concerns no other
            iteration.finished_requests += self._forget(work, ERROR)
            work.fail(self._unread(error, work))
            return
        if sequence.finish_reason is not None:
            iteration.finished_requests.append(sequence_stats(work, index))
            # The worker knows no stop strings: abort there.
            self._end(step.request_id, runs_on=step.finish_reason is None)
        work.notify()

    def _unread(self, error: Exception, work: Work) -> RequestFailedError:
        if isinstance(error, ReplayError):
            self.reliability.lost.inc()
            return WorkerLostError(str(error))
        logger.error("the output of request %r cannot be read", work.request_id, exc_info=error)
        return RequestFailedError(f"the output cannot be read: {type(error).__name__}: {error}")

    def require_room(self, count: int, client: str) -> None:
        """Raises as `require_alive` does, and QueueFullError unless `count` more sequences fit."""
        self.require_alive()
        try:
            self._room.require(count, client, self.num_in_flight)
        except QueueFullError:
            self.reliability.refused.inc()
            raise

    def _generation(self, request: EngineRequest, *, stream: bool) -> Generation:
        params = request.settled.params
        generation = Generation(
            request.request_id,
            request.prompt,
            completions_of(params, self.tokenizer),
            stream=stream,
            on_close=self._close,
            processors=self.processors.used_by(request.settled.selection),
            max_tokens=params.max_tokens,
        )
        generation.serial = next(self._serials)
        return generation

    def _pooling(self, request: EngineRequest) -> Pooling:
        pooling = Pooling(request, on_close=self._close)
        pooling.serial = next(self._serials)
        return pooling

    async def _send(self, request: EngineRequest, work: Work, pace: Pace) -> None:
        settled = request.settled
        self._end_at(request.deadline, work)
        self._in_flight.add(work)
        self.stats.arrived(len(request.prompt.token_ids), request.num_sequences, work.max_tokens)
        if self.request_log is not None and isinstance(work, Generation):
            self.request_log.began(work, settled.params)
        grammar = None if settled.grammar is None else settled.grammar.text
        for index, name in enumerate(work.sequence_ids):
            await pace.rest()
            if name not in self._in_flight:
                # Ended meanwhile.
                continue
            message = AddRequest(
                name,
                request.prompt.token_ids,
                self.inputs.sequence_params(settled, index),
                settled.selection,
                grammar,
                request.client,
                settled.pooling,
            )
            self._outbox.add(message, request.client)

    def _end_at(self, deadline: float | None, work: Work) -> None:
        if deadline is not None:
            seconds = max(deadline - time.monotonic(), 0.0)
            work.ends_at(asyncio.get_running_loop().call_later(seconds, self._expire, work))

    def _expire(self, work: Work) -> None:
        if ended := self._forget(work, ABORT):
            self.stats.finished(ended)
            self.reliability.timeouts.inc()
            work.fail(RequestTimeoutError("timeout: the time of the request is over, and its answer is not complete"))

    def _close(self, work: Work) -> None:
        """Aborts what still runs: the caller has stopped reading."""
        if self.request_log is not None and isinstance(work, Generation):
            self.request_log.ended(work)
        self.stats.finished(self._forget(work, ABORT))

    def _end(self, name: str, *, runs_on: bool = False) -> None:
        """Removes a sequence that has ended; `runs_on`: the worker still runs it."""
        self._in_flight.remove(name)
        self._left([name], running=runs_on)

    def _forget(self, work: Work, reason: str) -> list[FinishedRequestStats]:
        """Drops a request's running sequences, here and in the worker; returns their statistics."""
        running = self._in_flight.remove_work(work)
        if running:
            self._left(list(running), running=True)
        return [sequence_stats(work, index, reason) for index in running.values()]

    def _left(self, sequence_ids: list[str], *, running: bool) -> None:
        known = self._outbox.remove(sequence_ids)
        if running and known:
            self._supervisor.send(AbortRequests(known))
        self._room.left(len(sequence_ids))
        self._note_quiet()

    def _note_quiet(self) -> None:
        if self._draining and not self.is_busy:
            self._quiet.set()
