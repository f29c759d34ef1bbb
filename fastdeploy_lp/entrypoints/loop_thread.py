"""An event loop in a separate thread, for synchronous callers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from typing import Any, TypeVar

Result = TypeVar("Result")


class LoopThread:
    """Runs coroutines for blocking callers; the thread is a daemon, so it never delays the interpreter's exit."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        # `close` cancels calls handed over before it; a later call would wait forever, so the lock orders the two.
        # Reentrant, because the garbage collector may close a generator while the lock is held.
        self._handing_over = threading.RLock()
        self._closed = False
        self._thread = threading.Thread(target=self._loop.run_forever, name="fastdeploy_lp-engine", daemon=True)
        self._thread.start()

    @property
    def is_current(self) -> bool:
        """True in the loop's own thread, which must not wait for itself."""
        return threading.current_thread() is self._thread

    def run(self, call: Callable[..., Coroutine[Any, Any, Result]], *arguments: Any) -> Result:
        """Awaits `call(*arguments)` in the loop; interrupting the caller cancels it and waits for its cleanup.

        The loop's thread makes the coroutine, so that an interrupt of the caller leaves no unawaited one.

        Raises RuntimeError after `close`.
        """
        ended = threading.Event()
        tasks: list[asyncio.Task[Result]] = []

        def note_end(task: asyncio.Task[Result]) -> None:
            # Reads the exception, so that asyncio does not warn when an interrupted caller never reads it.
            if not task.cancelled():
                task.exception()
            ended.set()

        def begin() -> None:
            tasks.append(self._loop.create_task(_awaited(call, arguments)))
            tasks[0].add_done_callback(note_end)

        def stop() -> None:
            if tasks:
                tasks[0].cancel()
            else:  # the interrupt arrived before `begin` was handed over
                ended.set()

        handed_over = False
        try:
            handed_over = self._hand_over(begin)
            if handed_over:
                ended.wait()
        except BaseException:
            if self._hand_over(stop):
                ended.wait()
            raise
        if not handed_over:
            raise RuntimeError("this LLM has been shut down")
        return tasks[0].result()

    def iterate(self, items: AsyncGenerator[Result, None]) -> Iterator[Result]:
        """Yields the generator's items, each computed in the loop; closing the iterator closes the generator.

        Computation starts when the caller requests the first item.
        """
        try:
            while found := self.run(_next, items):
                yield found[0]
        finally:
            self._close_generator(items)

    def close(self) -> None:
        """Cancels the running tasks, stops the loop and joins its thread."""
        with self._handing_over:
            self._closed = True
        asyncio.run_coroutine_threadsafe(_cancel_others(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _hand_over(self, call: Callable[[], None]) -> bool:
        """Schedules a call in the loop; returns False after `close`."""
        with self._handing_over:
            if not self._closed:
                self._loop.call_soon_threadsafe(call)
            return not self._closed

    def _close_generator(self, items: AsyncGenerator[Any, None]) -> None:
        if self._closed:
            return
        if self.is_current:  # the garbage collector may run in any thread
            asyncio.run_coroutine_threadsafe(_close(items), self._loop)
        else:
            self.run(_close, items)


async def _awaited(call: Callable[..., Coroutine[Any, Any, Result]], arguments: tuple[Any, ...]) -> Result:
    # In the task, so that a call that makes no coroutine fails its caller, not the loop.
    return await call(*arguments)


async def _next(items: AsyncGenerator[Result, None]) -> tuple[Result, ...]:
    """Returns the next item in a tuple, or an empty tuple at the end."""
    async for item in items:
        return (item,)
    return ()


async def _close(items: AsyncGenerator[Any, None]) -> None:
    await items.aclose()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
