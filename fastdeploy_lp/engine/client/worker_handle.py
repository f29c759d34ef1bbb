"""Starts the worker process, exchanges messages with it, and detects its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Sequence

import zmq

from fastdeploy_lp.config import KEY_VARIABLES, FDConfig, ParallelConfig
from fastdeploy_lp.config.tensor_parallel import RANK_LOST
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
