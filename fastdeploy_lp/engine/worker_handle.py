"""Starts the worker process, talks to it and notices its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
import tempfile
from pathlib import Path

import zmq
import zmq.asyncio

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.engine.errors import EngineStartError
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
from fastdeploy_lp.platforms import current_platform

SHUTDOWN_SECONDS = 10.0
LAST_WORDS_MS = 200


class WorkerHandle:
    """One worker process and the socket to it.

    The socket speaks CURVE, and its public key reaches the worker through a private pipe only: nobody else on this
    machine can read or inject requests, whether it is a unix socket or a loopback port.
    """

    def __init__(self, fd_config: FDConfig) -> None:
        self._fd_config = fd_config
        self._socket_dir: str | None = None
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.PAIR)
        self._inbox = decoder(FromWorker)
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, pickled_processors: dict[str, bytes]) -> WorkerReady:
        """Start the process and wait until it is ready; raises EngineStartError, having cleaned up."""
        try:
            public_key, self._socket.curve_secretkey = zmq.curve_keypair()
            self._socket.curve_publickey = public_key
            self._socket.curve_server = True
            endpoint = self._bind()
            await self._spawn(WorkerStart(self._fd_config, endpoint, public_key, pickled_processors))
            message = await self.receive()
            if isinstance(message, WorkerReady):
                return message
            raise EngineStartError(_why(message, self.exit_status))
        except BaseException:
            if self.exit_status is None and self._process is not None:
                self._process.kill()  # while it loads the model it would not read a request to stop
            await self.stop()
            raise

    @property
    def pid(self) -> int | None:
        """The worker's process id."""
        return self._process.pid if self._process else None

    @property
    def exit_status(self) -> int | None:
        """None while the worker runs."""
        return self._process.returncode if self._process else None

    async def send(self, message: ToWorker) -> None:
        """Send one message."""
        await self._socket.send(encode(message))

    async def receive(self) -> FromWorker | None:
        """The next message; None once the worker has ended and its last words are read."""
        if self._process is None:
            return None
        message = asyncio.ensure_future(self._socket.recv())
        ended = asyncio.ensure_future(self._process.wait())
        try:
            await asyncio.wait({message, ended}, return_when=asyncio.FIRST_COMPLETED)
            if message.done() or await self._socket.poll(LAST_WORDS_MS):
                received: FromWorker = self._inbox.decode(await message)
                return received
            return None
        finally:
            for future in (message, ended):
                future.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await future

    async def stop(self) -> None:
        """End the worker, by force if it does not follow, and remove what it left."""
        process = self._process
        if process is not None and process.returncode is None:
            with contextlib.suppress(zmq.ZMQError):
                await self._socket.send(encode(Shutdown()), flags=zmq.NOBLOCK)
            try:
                await asyncio.wait_for(process.wait(), SHUTDOWN_SECONDS)
            except asyncio.TimeoutError:
                process.kill()
                await process.wait()
        self._socket.close(linger=0)
        self._context.term()
        if self._socket_dir is not None:
            shutil.rmtree(self._socket_dir, ignore_errors=True)

    def _bind(self) -> str:
        port = self._fd_config.parallel_config.engine_worker_queue_port
        if port:
            endpoint = f"tcp://127.0.0.1:{port}"
        else:
            self._socket_dir = tempfile.mkdtemp(prefix="fastdeploy_lp-")
            endpoint = f"ipc://{Path(self._socket_dir) / 'worker.sock'}"
        try:
            self._socket.bind(endpoint)
        except zmq.ZMQError as error:
            raise EngineStartError(f"engine_worker_queue_port: cannot listen on {endpoint}: {error}") from None
        return endpoint

    async def _spawn(self, start: WorkerStart) -> None:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "fastdeploy_lp.worker",
            stdin=asyncio.subprocess.PIPE,
            # A terminal's Ctrl-C must not reach the worker before the API process has let requests finish.
            start_new_session=True,
            env={**os.environ, **current_platform().worker_environment(), "PYTHONPATH": _python_path()},
        )
        pipe = self._process.stdin
        if pipe is None:
            raise EngineStartError("the worker process has no standard input")
        frame = encode(start)
        pipe.write(len(frame).to_bytes(8, "big") + frame)
        with contextlib.suppress(ConnectionError):  # it ended at once; `receive` tells why
            await pipe.drain()


def _python_path() -> str:
    """The worker must find what this process found, such as processors next to the script that was started."""
    return os.pathsep.join(dict.fromkeys(path or os.getcwd() for path in sys.path))


def _why(message: FromWorker | None, status: int | None) -> str:
    if isinstance(message, WorkerFailed):
        return message.message
    return f"the worker process ended with status {status} before it was ready"
