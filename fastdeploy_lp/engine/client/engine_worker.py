"""The worker of one engine: its start, its messages, and its replacement."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

import cloudpickle

from fastdeploy_lp.config import SupervisionConfig
from fastdeploy_lp.engine.client.engine_requests import EngineRequests
from fastdeploy_lp.engine.client.processor_states import ProcessorStates
from fastdeploy_lp.engine.client.supervisor import WorkerSupervisor
from fastdeploy_lp.engine.client.worker_handle import WorkerHandle
from fastdeploy_lp.engine.client.worker_loss import WorkerLoss
from fastdeploy_lp.engine.metrics import ReliabilityMetrics
from fastdeploy_lp.logits_processor import DeclaredProcessor
from fastdeploy_lp.logits_processor.quarantine import Quarantine
from fastdeploy_lp.messages import FromWorker, ResetProcessor, StepOutputs, ToWorker, WorkerReady

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
