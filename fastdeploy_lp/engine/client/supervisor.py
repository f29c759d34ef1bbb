"""The worker process: its start, its messages, its end or silence, and the next one in its place."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

import zmq

from fastdeploy_lp.config import KEY_VARIABLES, FDConfig, ParallelConfig, SupervisionConfig
from fastdeploy_lp.config.tensor_parallel import RANK_LOST
from fastdeploy_lp.engine.client.worker_loss import WorkerLoss
from fastdeploy_lp.engine.client.worker_socket import HOST, HandshakeWatch, LoopbackListener, SocketFolder
from fastdeploy_lp.engine.errors import EngineStartError
from fastdeploy_lp.logits_processor.chain.calls import Culprit, RunningCalls
from fastdeploy_lp.logits_processor.quarantine import Quarantine
from fastdeploy_lp.messages import (
    FromWorker,
    Shutdown,
    ToWorker,
    WorkerFailed,
    WorkerReady,
    WorkerStart,
    decoder,
    encode,
)
from fastdeploy_lp.platforms import current_platform, shared_memory

logger = logging.getLogger(__name__)

SHUTDOWN_SECONDS = 10.0
LAST_WORDS_SECONDS = 0.2
HANDSHAKE_MILLISECONDS = 2000
READABLE = int(zmq.POLLIN)


class WorkerHandle:
    """One worker process and its socket.

    The socket uses CURVE, and its public key reaches the worker through a private pipe only: no other process on this
    machine can read or inject requests, on a unix socket or a loopback port. The process runs `module`.
    """

    def __init__(self, fd_config: FDConfig, module: str = "fastdeploy_lp.worker") -> None:
        self._fd_config = fd_config
        self._running_calls = RunningCalls.create()
        self._module = module
        self._folder: SocketFolder | None = None
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PAIR)
        # No limit: admission of requests bounds the messages in flight.
        self._socket.sndhwm = 0
        # A silent connection of another user occupies an open file of this process until it times out.
        self._socket.handshake_ivl = HANDSHAKE_MILLISECONDS
        self._listener: LoopbackListener | None = None
        self._handshakes = HandshakeWatch(self._socket, self._on_worker_connected)
        self._inbox = decoder(FromWorker)
        self._process: asyncio.subprocess.Process | None = None
        self._ended: asyncio.Task[int] | None = None
        self._stirred = asyncio.Event()

    async def start(self, pickled_processors: dict[str, bytes], quarantine: Quarantine | None = None) -> WorkerReady:
        """Starts the process and waits until it is ready; cleans up and raises EngineStartError on failure."""
        shared_memory.remove_of_the_dead()
        try:
            public_key, self._socket.curve_secretkey = zmq.curve_keypair()
            self._socket.curve_publickey = public_key
            self._socket.curve_server = True
            self._handshakes.start()
            endpoint = self._bind()
            asyncio.get_running_loop().add_reader(self._socket.fileno(), self._stirred.set)
            calls = self._running_calls.fd
            left = quarantine or Quarantine()
            await self._spawn(WorkerStart(self._fd_config, endpoint, public_key, pickled_processors, calls, left))
            message = await self.receive()
            if isinstance(message, WorkerReady):
                # If both processes are killed after this, no folder remains. No other process can connect.
                self._remove_folder()
                return message
            raise EngineStartError(self._why(message))
        except BaseException:
            self.kill()  # it reads no shutdown message while it loads the model
            await self.stop()
            raise

    @property
    def pid(self) -> int | None:
        """The worker's process id."""
        return self._process.pid if self._process else None

    @property
    def exit_status(self) -> int | None:
        """The exit status; None while the worker runs."""
        return self._process.returncode if self._process else None

    def send(self, message: ToWorker) -> None:
        """Sends one message; a worker that is gone does not receive it, and `receive` reports its end."""
        with contextlib.suppress(zmq.Again):
            self._socket.send(encode(message), zmq.NOBLOCK)
        # Sending may have consumed the signal of an incoming message.
        self._stirred.set()

    async def receive(self) -> FromWorker | None:
        """Returns the next message; None once the worker has ended and its last messages are read."""
        while self._ended is not None:
            if self._has_message:
                message: FromWorker = self._inbox.decode(self._socket.recv())
                return message
            if not self._ended.done():
                await self._stirred.wait()
                self._stirred.clear()
            elif not await self._comes_in(LAST_WORDS_SECONDS):
                break
        return None

    @property
    def _has_message(self) -> bool:
        # `poll` makes a poller for every call, and a flag's operators make flags.
        return bool(int(self._socket.get(zmq.EVENTS)) & READABLE)

    async def _comes_in(self, seconds: float) -> bool:
        """Waits for a message; returns False after `seconds` without one, even if messages are sent meanwhile."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while not self._has_message:
            left = deadline - loop.time()
            if left <= 0:
                return False
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._stirred.wait(), left)
            self._stirred.clear()
        return True

    @property
    def how_it_ended(self) -> str:
        """Description of the process's end."""
        status = self.exit_status
        if status == RANK_LOST:
            return "a rank of the worker's tensor-parallel group ended, and the others with it; the log names it"
        if status is None or status >= 0:
            return f"the worker process ended with status {status}"
        name = {each.value: each.name for each in signal.Signals}.get(-status, "a signal")
        memory = "; the system may have run out of memory" if -status == signal.SIGKILL else ""
        return f"the worker process was ended by {name} (status {status}{memory})"

    def culprits(self, names: Sequence[str]) -> tuple[Culprit, ...]:
        """Returns the declared processors that were running when the process ended by itself."""
        return () if self.exit_status == RANK_LOST else self._running_calls.culprits(names)

    def kill(self) -> None:
        """Kills the process; `receive` reports its end."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    async def stop(self) -> None:
        """Ends the worker, by force after `SHUTDOWN_SECONDS`, and removes what it left."""
        process = self._process
        if process is not None and process.returncode is None:
            self.send(Shutdown())
            try:
                await asyncio.wait_for(process.wait(), SHUTDOWN_SECONDS)
            except asyncio.TimeoutError:
                process.kill()
                await process.wait()
        if process is not None:
            shared_memory.remove_of(process.pid)
        if not self._socket.closed:
            self._handshakes.close()
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
            self._socket.close(linger=0)
        if self._listener is not None:
            self._listener.close()
        self._context.term()
        self._running_calls.close()
        self._remove_folder()

    def _remove_folder(self) -> None:
        if self._folder is not None:
            self._folder.remove()

    def _bind(self) -> str:
        port = self._fd_config.parallel_config.engine_worker_queue_port
        if port:
            return self._bind_loopback(port)
        self._folder = SocketFolder()
        endpoint = f"ipc://{self._folder.socket}"
        try:
            self._socket.bind(endpoint)
        except zmq.ZMQError as error:
            raise EngineStartError(f"cannot listen on {endpoint}: {error}") from None
        return endpoint

    def _bind_loopback(self, port: int) -> str:
        try:
            self._listener = LoopbackListener(port)
        except OSError as error:
            reason = f"cannot listen on tcp://{HOST}:{port}: {error.strerror}"
            raise EngineStartError(f"engine_worker_queue_port: {reason}") from None
        self._listener.hand_to(self._socket)
        return self._listener.endpoint

    def _on_worker_connected(self) -> None:
        if self._listener is not None:
            self._listener.refuse_further()

    async def _spawn(self, start: WorkerStart) -> None:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            self._module,
            stdin=asyncio.subprocess.PIPE,
            pass_fds=() if start.running_calls_fd is None else (start.running_calls_fd,),
            # A terminal's Ctrl-C must not reach the worker before the API process has let requests finish. No separate
            # session: Linux divides CPU time among sessions first, and priorities count only within a session.
            preexec_fn=os.setpgrp,
            env=_environment(self._fd_config.parallel_config),
        )
        self._ended = asyncio.create_task(self._process.wait())
        self._ended.add_done_callback(lambda _: self._stirred.set())
        pipe = self._process.stdin
        if pipe is None:
            raise EngineStartError("the worker process has no standard input")
        frame = encode(start)
        pipe.write(len(frame).to_bytes(8, "big") + frame)
        with contextlib.suppress(ConnectionError):  # it ended at once; `receive` reports its end
            await pipe.drain()

    def _why(self, message: FromWorker | None) -> str:
        if isinstance(message, WorkerFailed):
            return message.message
        return f"{self.how_it_ended} before it was ready"


def _environment(parallel: ParallelConfig) -> dict[str, str]:
    """Returns this process's environment without the keys of clients and operators: processors run in the worker."""
    own = {name: value for name, value in os.environ.items() if name not in KEY_VARIABLES}
    platform = current_platform()
    wanted = platform.worker_environment() | platform.rank_environment(parallel.tensor_parallel_size)
    if parallel.data_parallel_size > 1:
        wanted |= platform.data_parallel_environment(parallel.data_parallel_rank, parallel.data_parallel_size)
    return {**own, **wanted, "PYTHONPATH": _python_path()}


def _python_path() -> str:
    """Returns this process's import path, so that the worker finds, for example, processors next to the main script."""
    return os.pathsep.join(dict.fromkeys(path or os.getcwd() for path in sys.path))


WINDOW_SECONDS = 60.0
MAX_FAILED_STARTS = 3
FIRST_DELAY, LONGEST_DELAY = 0.25, 8.0
WATCH_SECONDS = 0.5


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
