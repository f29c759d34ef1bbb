"""Work for requests in the API process, before and after the engine runs them: in pieces or in threads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from typing import Protocol, TypeVar

from fastdeploy_lp.engine.helpers.turns import MAX_WAITING, Turns
from fastdeploy_lp.logits_processor.chain.author_threads import switch_threads_quickly

# Seconds of work before yielding to other tasks.
PIECE = 0.004
THREADS = 2

Result = TypeVar("Result")


class Pace:
    """Splits one caller's work: `rest` yields to the event loop's other tasks after each piece."""

    def __init__(self) -> None:
        self._began = time.perf_counter()

    async def rest(self) -> None:
        """Yields to other tasks if the piece is over; otherwise returns at once."""
        if time.perf_counter() - self._began > PIECE:
            await asyncio.sleep(0)
            self._began = time.perf_counter()


class Run(Protocol):
    """Runs a piece of work inline (`run_here`) or in a thread (`HostThreads.run`)."""

    async def __call__(self, work: Callable[[], Result]) -> Result:
        """Returns the result of the work; raises what it raises."""


async def run_here(work: Callable[[], Result]) -> Result:
    """Runs work that is too small for a thread, and returns its result."""
    return work()


class HostThreads:
    """Runs work in threads, so that the event loop stays free.

    Clients take turns, and work whose caller is cancelled before it begins is dropped. Running work keeps its thread
    until it returns: callers bound it beforehand. most: limit of waiting pieces of work.
    """

    def __init__(self, most: int = MAX_WAITING) -> None:
        self._turns = Turns(THREADS, "threads that prepare large requests", most)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="host-work")

    async def run(self, work: Callable[[], Result], client: str = "") -> Result:
        """Returns the result of the work; raises what it raises, and QueueFullError when too many callers wait."""
        switch_threads_quickly()
        await self._turns.take(client)
        loop = asyncio.get_running_loop()

        def ended(_: Future[Result]) -> None:
            # The loop may be closed by now; then no caller waits for a turn.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._turns.give_back)

        running = self._threads.submit(copy_context().run, work)
        running.add_done_callback(ended)
        return await asyncio.wrap_future(running)

    def of(self, client: str) -> Run:
        """Returns `run` bound to a client."""
        return _RunForClient(self, client)

    def close(self) -> None:
        """Releases the threads without waiting for running work."""
        self._threads.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True)
class _RunForClient:
    """`HostThreads.run` bound to a client."""

    threads: HostThreads
    client: str

    async def __call__(self, work: Callable[[], Result]) -> Result:
        """Returns the result of the work; raises what it raises."""
        return await self.threads.run(work, self.client)
