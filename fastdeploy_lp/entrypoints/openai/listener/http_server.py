"""Life cycle of the HTTP server: it answers at once, drains on a stop signal, and ends with the engine."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from socket import socket
from typing import Any

import uvicorn

from fastdeploy_lp.engine.client.engine import Engine
from fastdeploy_lp.engine.errors import EngineDeadError
from fastdeploy_lp.entrypoints.openai.listener.bounds import ConnectionBounds, DescriptorWatch

logger = logging.getLogger(__name__)

# Time for answers to reach their clients after the last computation.
LAST_BYTES_SECONDS = 3


class StopSignals:
    """Received SIGTERM and SIGINT: `asked` is set by the first one, `forced` by the second."""

    def __init__(self) -> None:
        self.received: list[int] = []
        self.asked = asyncio.Event()
        self.forced = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._note, number)

    def _note(self, number: int) -> None:
        self.received.append(number)
        (self.forced if self.asked.is_set() else self.asked).set()


class HTTPServer(uvicorn.Server):
    """uvicorn's server, which leaves signals to its caller and closes idle connections when no file can be opened."""

    def __init__(self, config: uvicorn.Config, bounds: ConnectionBounds) -> None:
        super().__init__(config)
        self._descriptors = DescriptorWatch(bounds)

    async def startup(self, sockets: list[socket] | None = None) -> None:
        """Begins to accept connections."""
        await super().startup(sockets)
        self._descriptors.start()

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        """Closes the connections after their answers."""
        self._descriptors.stop()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Captures no signals."""
        yield

    def end(self, *, at_once: bool) -> None:
        """Stops accepting connections and ends when all answers are sent, or `at_once`."""
        self.force_exit = at_once
        self.should_exit = True


class ServerLife:
    """Runs the server and the engine until a signal arrives or the engine ends.

    grace: seconds for running requests after the first stop signal.
    """

    def __init__(self, server: HTTPServer, engine: Engine, signals: StopSignals, grace: float) -> None:
        self._server = server
        self._engine = engine
        self._signals = signals
        self._grace = grace

    async def run(self, listener: socket, on_ready: Callable[[], None]) -> bool:
        """Serves on `listener`; returns False if a signal ended it before the worker was ready.

        Raises EngineStartError if the first worker fails to start, EngineDeadError if a later one does.
        """
        serving = asyncio.create_task(self._server.serve(sockets=[listener]))
        starting = asyncio.create_task(self._engine.start())
        asked = asyncio.create_task(self._signals.asked.wait())
        death = None
        try:
            await asyncio.wait({serving, starting, asked}, return_when=asyncio.FIRST_COMPLETED)
            started = starting.done()
            if started:
                starting.result()
                on_ready()
                death = await self._until_asked()
            self._server.end(at_once=self._signals.forced.is_set())
            await _first(_ended(serving), self._forced())
            await serving
        finally:
            self._server.end(at_once=True)
            for task in (starting, asked):
                task.cancel()
            await asyncio.gather(serving, starting, asked, return_exceptions=True)
        if death is not None:
            raise EngineDeadError(death)
        return started

    async def _until_asked(self) -> str | None:
        """Waits for a signal, then up to `grace` for running requests; returns the reason if the engine died first."""
        await _first(self._signals.asked.wait(), self._engine.wait_dead())
        if not self._signals.asked.is_set():
            return await self._engine.wait_dead()
        load = self._engine.load
        if load.running or load.waiting:
            logger.info("shutting down; waiting up to %g s for running requests", self._grace)
        drained = asyncio.create_task(self._engine.drain())
        try:
            await _first(_ended(drained), self._signals.forced.wait(), asyncio.sleep(self._grace))
        finally:
            drained.cancel()
            await asyncio.gather(drained, return_exceptions=True)
        self._engine.end_requests("the server is shutting down")
        return None

    async def _forced(self) -> None:
        await self._signals.forced.wait()
        self._server.end(at_once=True)


async def _ended(task: asyncio.Task[Any]) -> None:
    await asyncio.wait({task})


async def _first(*work: Coroutine[Any, Any, Any]) -> None:
    """Waits until one of the coroutines is done, and cancels the others."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
