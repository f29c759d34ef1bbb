"""Keeps a worker running: detects its end or silence, and starts a new one."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from fastdeploy_lp.config import SupervisionConfig
from fastdeploy_lp.engine.client.worker_handle import WorkerHandle
from fastdeploy_lp.engine.client.worker_loss import WorkerLoss
from fastdeploy_lp.engine.errors import EngineStartError
from fastdeploy_lp.logits_processor.quarantine import Quarantine
from fastdeploy_lp.messages import FromWorker, ToWorker, WorkerFailed, WorkerReady

WINDOW_SECONDS = 60.0
MAX_FAILED_STARTS = 3
FIRST_DELAY, LONGEST_DELAY = 0.25, 8.0


class RestartPolicy:
    """Counts failures; gives up after more than `max_restarts` in a minute, or three failed starts in a row.

    A failure caused by a known processor does not count: the processor's quarantine prevents the next one.
    """

    def __init__(self, max_restarts: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_restarts = max_restarts
        self._clock = clock
        self._failures: deque[float] = deque()
        self._failed_starts = 0

    def delay(self, *, was_ready: bool, explained: bool = False) -> float | None:
        """Returns the seconds to wait before the next start; None to give up.

        was_ready: the failed worker had been ready. explained: a processor ended it.
        """
        if explained:
            return 0.0
        now = self._clock()
        self._failures.append(now)
        while now - self._failures[0] > WINDOW_SECONDS:
            self._failures.popleft()
        self._failed_starts = 0 if was_ready else self._failed_starts + 1
        if len(self._failures) > self._max_restarts or self._failed_starts >= MAX_FAILED_STARTS:
            return None
        # Replace at once after the first failure: most causes do not recur.
        again = len(self._failures) - 2
        return 0.0 if again < 0 else min(FIRST_DELAY * 2**again, LONGEST_DELAY)


class Watchdog:
    """Detects hangs: each step and each abort causes a message, so a silent worker with work hangs."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._waiting_since: float | None = None

    @property
    def silence(self) -> float:
        """Seconds since the worker should have sent a message; 0 without work."""
        return 0.0 if self._waiting_since is None else self._clock() - self._waiting_since

    def sent(self) -> None:
        """Notes a message with work for the worker."""
        if self._waiting_since is None:
            self._waiting_since = self._clock()

    def heard(self, *, busy: bool) -> None:
        """Notes a message from the worker; `busy`: it has work left."""
        self._waiting_since = self._clock() if busy else None


logger = logging.getLogger(__name__)

WATCH_SECONDS = 0.5


class WorkerEvents(Protocol):
    """Events and state that the supervisor exchanges with its client."""

    @property
    def is_busy(self) -> bool:
        """True if the worker has work, and so must send a message."""

    def worker_said(self, message: FromWorker) -> None:
        """Handles a message of the worker."""

    @property
    def quarantine(self) -> Quarantine:
        """The processors that the next worker keeps out of service."""

    def worker_lost(self, loss: WorkerLoss) -> None:
        """Handles a worker that is gone or failed to start; another one may follow."""

    def worker_ready(self, ready: WorkerReady) -> None:
        """Handles a new worker."""


class WorkerSupervisor:
    """Runs one worker at a time, created by `make`; used from one event loop.

    processors: the names of the declared logits processors, in order.
    """

    def __init__(
        self,
        config: SupervisionConfig,
        make: Callable[[], WorkerHandle],
        events: WorkerEvents,
        processors: Sequence[str] = (),
    ) -> None:
        self._config = config
        self._processors = list(processors)
        self._make = make
        self._events = events
        self._policy = RestartPolicy(config.max_restarts)
        self._watchdog = Watchdog()
        self._worker: WorkerHandle | None = None
        self._pickled_processors: dict[str, bytes] = {}

    @property
    def pid(self) -> int | None:
        """The worker's process id."""
        return None if self._worker is None else self._worker.pid

    async def start(self, pickled_processors: dict[str, bytes]) -> WorkerReady:
        """Starts the first worker and waits until it is ready; raises EngineStartError."""
        self._pickled_processors = pickled_processors
        try:
            return await self._start()
        except EngineStartError as error:
            raise EngineStartError(self._loss_of(str(error)).cause) from error

    def send(self, message: ToWorker) -> None:
        """Sends a message to the current worker."""
        if self._worker is not None:
            self._watchdog.sent()
            self._worker.send(message)

    async def run(self) -> str:
        """Supervises the worker and its successors until there are no more; returns the cause in one line."""
        while True:
            loss = await self._until_lost()
            logger.error("the worker is lost: %s", loss.cause)
            self._events.worker_lost(loss)
            end = await self._replace(loss) if self._config.restart else loss.cause
            if end is not None:
                return end

    async def stop(self) -> None:
        """Ends the worker."""
        if self._worker is not None:
            await self._worker.stop()

    async def _start(self) -> WorkerReady:
        self._watchdog.heard(busy=False)
        self._worker = self._make()
        return await self._worker.start(self._pickled_processors, self._events.quarantine)

    def _loss_of(self, how: str) -> WorkerLoss:
        return WorkerLoss(how, () if self._worker is None else self._worker.culprits(self._processors))

    async def _replace(self, loss: WorkerLoss) -> str | None:
        """Starts another worker; returns None, or the reason why there is none."""
        was_ready = True
        while True:
            delay = self._policy.delay(was_ready=was_ready, explained=bool(loss.culprits))
            if delay is None:
                return f"it failed too often to be started again, the last time because {loss.cause}"
            await self.stop()
            await asyncio.sleep(delay)
            began = time.monotonic()
            try:
                ready = await self._start()
            except EngineStartError as error:
                was_ready, loss = False, self._loss_of(str(error))
                logger.error("the worker could not be started again: %s", loss.cause)
                if loss.culprits:
                    self._events.worker_lost(loss)
                continue
            logger.info("worker %s ready in place of the lost one after %.1f s", self.pid, time.monotonic() - began)
            self._events.worker_ready(ready)
            return None

    async def _until_lost(self) -> WorkerLoss:
        """Forwards the worker's messages until the worker is gone."""
        worker = self._worker
        if worker is None:
            raise RuntimeError("no worker was started")
        watch = asyncio.create_task(self._watch(worker))
        try:
            while (message := await worker.receive()) is not None:
                if isinstance(message, WorkerFailed):
                    worker.kill()
                    return WorkerLoss(message.message)
                self._events.worker_said(message)
                self._watchdog.heard(busy=self._events.is_busy)
                # Several messages may be ready; let other tasks run between them.
                await asyncio.sleep(0)
            return self._loss_of(watch.result() if watch.done() else worker.how_it_ended)
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)

    async def _watch(self, worker: WorkerHandle) -> str:
        """Kills a worker that hangs, and returns the reason."""
        limit = self._config.step_timeout
        while True:
            asked = time.monotonic()
            await asyncio.sleep(WATCH_SECONDS)
            if time.monotonic() - asked > 2 * WATCH_SECONDS:
                # This process itself was stopped, and may have unread messages of the worker.
                self._watchdog.heard(busy=self._events.is_busy)
            if limit and self._watchdog.silence > limit:
                worker.kill()
                return f"the worker process hung: a step took longer than {limit:g} s (step_timeout)"
