"""The HTTP server's life: it answers from the first moment on, drains when it is asked to end, ends with the engine."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from socket import socket
from typing import Any

import uvicorn

from fastdeploy_lp.engine.engine import Engine
from fastdeploy_lp.engine.errors import EngineDeadError
from fastdeploy_lp.entrypoints.openai.connection_bounds import ConnectionBounds
from fastdeploy_lp.entrypoints.openai.descriptor_watch import DescriptorWatch

logger = logging.getLogger(__name__)

# For answers to reach their clients when nothing is computed any more.
LAST_BYTES_SECONDS = 3
TICKS_A_SECOND = 10


class StopSignals:
    """SIGTERM and SIGINT as they come: `asked` after the first one, `forced` after the second."""

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
    """uvicorn's, which leaves signals to its caller and makes room when this process can open no more files."""

    def __init__(self, config: uvicorn.Config, bounds: ConnectionBounds) -> None:
        super().__init__(config)
        self._descriptors = DescriptorWatch(bounds)

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second."""
        if counter % TICKS_A_SECOND == 0:
            self._descriptors.look()
        return await super().on_tick(counter)

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Nothing is captured."""
        yield

    def end(self, *, at_once: bool) -> None:
        """Take no more connections and end when all answers are sent, or `at_once`."""
        self.force_exit = at_once
        self.should_exit = True


class ServerLife:
    """Runs server and engine until signals or the engine's end are the end of both.

    grace: seconds that requests in flight get once the server was asked to end.
    """

    def __init__(self, server: HTTPServer, engine: Engine, signals: StopSignals, grace: float) -> None:
        self._server = server
        self._engine = engine
        self._signals = signals
        self._grace = grace

    async def run(self, listener: socket, on_ready: Callable[[], None]) -> bool:
        """Serve on `listener`; False if signals ended it before the worker was ready.

        Raises EngineStartError when there is no first worker, EngineDeadError when there is no further one.
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
        """Wait for the end, and let what runs have its grace; gives what the engine died of, if it did."""
        await _first(self._signals.asked.wait(), self._engine.wait_dead())
        if not self._signals.asked.is_set():
            return await self._engine.wait_dead()
        logger.info("asked to end: requests in flight have %g s", self._grace)
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
    """Until one of them is done; the others are cancelled."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
