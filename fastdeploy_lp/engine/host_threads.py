"""Threads for the work that a request causes in the API process before and after the engine has it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from typing import Protocol, TypeVar

from fastdeploy_lp.engine.turns import MAX_WAITING, Turns
from fastdeploy_lp.logits_processor.author_threads import switch_threads_quickly

Result = TypeVar("Result")

THREADS = 2


class Run(Protocol):
    """Runs a piece of work: here (`run_here`), or in a thread (`HostThreads.run`)."""

    async def __call__(self, work: Callable[[], Result]) -> Result:
        """The result of the work, or what it raises."""


async def run_here(work: Callable[[], Result]) -> Result:
    """The result of work that is too little for a thread."""
    return work()


class HostThreads:
    """Runs each piece of work in a thread, so that the event loop it lives on serves others meanwhile.

    Clients take turns, and work whose caller is cancelled before it begins is dropped. Work that runs continues, and
    keeps its thread, until it returns: callers bound it beforehand. most: pieces of work that may wait.
    """

    def __init__(self, most: int = MAX_WAITING) -> None:
        self._turns = Turns(THREADS, "threads that prepare large requests", most)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="host-work")

    async def run(self, work: Callable[[], Result], client: str = "") -> Result:
        """The result of the work, or what it raises; raises QueueFullError when too many callers wait."""
        switch_threads_quickly()
        await self._turns.take(client)
        loop = asyncio.get_running_loop()

        def ended(_: Future[Result]) -> None:
            # The loop may be closed by now; then nobody waits for a turn.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._turns.give_back)

        running = self._threads.submit(copy_context().run, work)
        running.add_done_callback(ended)
        return await asyncio.wrap_future(running)

    def of(self, client: str) -> Run:
        """`run` for one client's work."""
        return _RunForClient(self, client)

    def close(self) -> None:
        """Give back the threads; work that runs is not waited for."""
        self._threads.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True)
class _RunForClient:
    """`HostThreads.run` with the client given."""

    threads: HostThreads
    client: str

    async def __call__(self, work: Callable[[], Result]) -> Result:
        """The result of the work, or what it raises."""
        return await self.threads.run(work, self.client)
