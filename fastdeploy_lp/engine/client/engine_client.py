"""The API process's client of one worker: the worker with its replacements, its requests, and their statistics."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial

import cloudpickle

from fastdeploy_lp.config import FDConfig, SupervisionConfig
from fastdeploy_lp.engine.client.engine import EngineLoad
from fastdeploy_lp.engine.client.engine_requests import EngineRequests
from fastdeploy_lp.engine.client.engine_stats import EngineStats, LoggingStatLogger, StatLoggers
from fastdeploy_lp.engine.client.generation import Generation
from fastdeploy_lp.engine.client.pooling import Pooling
from fastdeploy_lp.engine.client.processor_states import ProcessorStates
from fastdeploy_lp.engine.client.request_log import RequestLog
from fastdeploy_lp.engine.client.supervisor import WorkerHandle, WorkerSupervisor
from fastdeploy_lp.engine.client.worker_loss import WorkerLoss
from fastdeploy_lp.engine.errors import EngineRestartingError
from fastdeploy_lp.engine.metrics import PrometheusStatLogger, ReliabilityMetrics
from fastdeploy_lp.engine.prepare.input_processor import EngineRequest
from fastdeploy_lp.engine.prepare.preparation import RequestPreparation
from fastdeploy_lp.engine.request_spans import SpanStatLogger
from fastdeploy_lp.logits_processor import DeclaredProcessor
from fastdeploy_lp.logits_processor.quarantine import Quarantine
from fastdeploy_lp.messages import FromWorker, ResetProcessor, StepOutputs, ToWorker, WorkerReady
from fastdeploy_lp.plugins.stat_logger import StatLoggerBase

logger = logging.getLogger(__name__)


class EngineWorker:
    """Connects the supervised worker with the engine's requests and its logits processors.

    make: returns a worker that is not started.
    """

    def __init__(
        self,
        config: SupervisionConfig,
        declared: Sequence[DeclaredProcessor],
        make: Callable[[], WorkerHandle],
        requests: EngineRequests,
        processors: ProcessorStates,
        reliability: ReliabilityMetrics,
    ) -> None:
        self._config = config
        self._declared = list(declared)
        self._requests = requests
        self._processors = processors
        self._reliability = reliability
        self._supervisor = WorkerSupervisor(config, make, self, [each.name for each in declared])
        self._supervising: asyncio.Task[None] | None = None
        self._quarantine_at_start = Quarantine()

    @property
    def pid(self) -> int | None:
        """The worker's process id."""
        return self._supervisor.pid

    async def start(self) -> None:
        """Starts the worker and waits until it is ready; raises EngineStartError."""
        # Only classes given as objects are sent; the worker imports the others by their SPEC.
        objects = {p.spec: cloudpickle.dumps(p.found) for p in self._declared if p.given_as_object}
        ready = await self._supervisor.start(objects)
        logger.info("worker %s ready, model loaded in %.1f s", self.pid, ready.load_seconds)
        self._processors.set_argmax_invariant(ready.argmax_invariant)
        self._requests.connect()
        self._supervising = asyncio.create_task(self._supervise())

    def send(self, message: ToWorker) -> None:
        """Sends a message to the current worker."""
        self._supervisor.send(message)

    def reset_processor(self, name: str) -> None:
        """Returns a quarantined logits processor to service; raises KeyError for a name that is not declared."""
        self._processors.reset(name)
        if self._requests.has_worker:
            self.send(ResetProcessor(name))

    async def stop_supervising(self) -> None:
        """Starts no further worker."""
        if self._supervising is not None:
            self._supervising.cancel()
            await asyncio.gather(self._supervising, return_exceptions=True)

    async def stop(self) -> None:
        """Ends the worker."""
        await self._supervisor.stop()

    @property
    def is_busy(self) -> bool:
        """True if any sequences are in flight."""
        return len(self._requests) > 0

    @property
    def quarantine(self) -> Quarantine:
        """The processors that the next worker keeps out of service."""
        self._quarantine_at_start = self._processors.quarantine
        return self._quarantine_at_start

    def worker_said(self, message: FromWorker) -> None:
        """Handles a message of the worker."""
        if isinstance(message, StepOutputs):
            self._requests.take(message)

    def worker_lost(self, loss: WorkerLoss) -> None:
        """Handles the loss of the worker: requests run again on the next one, except possible causes of the crash."""
        self._requests.disconnect()
        self._processors.restart(loss)
        if self._config.restart:
            self._requests.begin_again(loss)

    def worker_ready(self, ready: WorkerReady) -> None:
        """Handles a new worker: sends it the previous worker's sequences and newer ones."""
        self._processors.set_argmax_invariant(ready.argmax_invariant)
        for name in self._processors.quarantine.lifted_since(self._quarantine_at_start):
            self.send(ResetProcessor(name))
        self._reliability.worker_restarts.inc()
        self._reliability.replays.inc(self._requests.connect())

    async def _supervise(self) -> None:
        try:
            cause = await self._supervisor.run()
        except Exception as error:
            logger.exception("the engine cannot go on")
            cause = f"{type(error).__name__}: {error}"
        logger.error("engine down: %s", cause)
        self._requests.end(cause)


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
        self.preparation = preparation = preparation or RequestPreparation(fd_config, declared)
        self.tokenizer = preparation.tokenizer
        self.message_parsers = preparation.message_parsers
        self.inputs = preparation.inputs
        self.request_templates = preparation.request_templates
        self.host = preparation.host
        self.processors = ProcessorStates(declared)
        self.metrics = PrometheusStatLogger(fd_config)
        reliability = ReliabilityMetrics(self.metrics.registry)
        rank = fd_config.parallel_config.data_parallel_rank
        own: list[tuple[str, StatLoggerBase]] = [
            ("prometheus", self.metrics),
            ("logging", LoggingStatLogger(fd_config, rank)),
        ]
        if fd_config.observability_config.otlp_traces_endpoint is not None:
            own.append(("opentelemetry", SpanStatLogger(fd_config, rank)))
        self._stats = EngineStats(self.processors, StatLoggers([*own, *stat_loggers], rank))
        self._requests = EngineRequests(
            fd_config.scheduler_config,
            preparation,
            self.processors,
            self._stats,
            reliability,
            self._send,
            fair=fair_queue,
        )
        make = make_worker or partial(WorkerHandle, fd_config)
        self._worker = EngineWorker(
            fd_config.supervision_config, declared, make, self._requests, self.processors, reliability
        )

    async def start(self) -> None:
        """Starts the worker and waits until it is ready; raises EngineStartError."""
        await self._worker.start()
        self.preparation.start()
        self._requests.admission.start()
        self._stats.loggers.log_engine_initialized()
        self._stats.loggers.start(self.fd_config.observability_config.log_stats_interval)

    def require_started(self) -> None:
        """Raises EngineStartingError until the first worker is ready; that worker may have ended since."""
        self._requests.admission.require_started()

    def require_alive(self) -> None:
        """Raises EngineStartingError, EngineDeadError or EngineDrainingError while no requests are accepted."""
        self._requests.admission.require_open()

    def require_ready(self) -> None:
        """Raises as `require_alive` does, and EngineRestartingError while no worker is ready."""
        self.require_alive()
        if not self._requests.has_worker:
            raise EngineRestartingError("the worker is being started again; requests wait for it")

    def require_room(self, count: int, client: str) -> None:
        """Raises as `require_alive` does, and QueueFullError unless `count` more sequences fit."""
        self._requests.require_room(count, client)

    @property
    def is_alive(self) -> bool:
        """True if requests are accepted, even if they must wait for a worker."""
        return self._requests.admission.is_open

    @property
    def is_ready(self) -> bool:
        """True if a worker accepts requests."""
        return self.is_alive and self._requests.has_worker

    @property
    def load(self) -> EngineLoad:
        """Running and waiting sequences; all of them wait while no worker is ready."""
        return self._requests.load

    @property
    def num_in_flight(self) -> int:
        """Number of sequences in the worker or waiting for it."""
        return len(self._requests)

    @property
    def request_log(self) -> RequestLog | None:
        """The log that records requests, or None."""
        return self._requests.request_log

    @request_log.setter
    def request_log(self, log: RequestLog | None) -> None:
        self._requests.request_log = log

    @property
    def worker_pid(self) -> int | None:
        """The worker's process id."""
        return self._worker.pid

    async def generate(
        self, requests: Sequence[EngineRequest], *, stream: bool = False, bounded: bool = True
    ) -> list[Generation]:
        """Sends requests to the worker, all of them or none.

        Raises as `require_alive` does, ProcessorUnavailableError if a request uses a logits processor in quarantine
        and, if `bounded`, QueueFullError if too many sequences already wait.
        """
        return await self._requests.generate(requests, stream=stream, bounded=bounded)

    async def pool(self, requests: Sequence[EngineRequest], *, bounded: bool = True) -> list[Pooling]:
        """Sends prompts to pool to the worker, all of them or none; raises as `generate` does."""
        return await self._requests.pool(requests, bounded=bounded)

    async def reset_processor(self, name: str) -> None:
        """Returns a quarantined logits processor to service; raises KeyError for a name that is not declared."""
        self._worker.reset_processor(name)

    async def drain(self) -> None:
        """Stops accepting requests and waits until the requests in flight have ended."""
        await self._requests.drain()

    async def wait_dead(self) -> str:
        """Waits until no worker is left and none will follow; returns the cause."""
        return await self._requests.admission.wait_dead()

    def end_requests(self, reason: str) -> None:
        """Ends every request in flight with EngineDeadError, and accepts no more."""
        self._requests.end(reason)

    async def shutdown(self) -> None:
        """Ends the worker; requests still in flight end with EngineDeadError."""
        self.end_requests("the server is shutting down")
        await self._worker.stop_supervising()
        await self._stats.loggers.stop()
        await self.preparation.close()
        await self._worker.stop()

    def _send(self, message: ToWorker) -> None:
        self._worker.send(message)
