"""An event loop in a thread of its own, for callers that have none."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from typing import Any, TypeVar

Result = TypeVar("Result")


class LoopThread:
    """Runs coroutines for a caller who waits; the thread is a daemon and so never holds up the interpreter's exit."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        # What is handed over before the end is cancelled by it; what comes later would wait for ever.
        # The garbage collector may close a generator in the middle of it.
        self._handing_over = threading.RLock()
        self._closed = False
        self._thread = threading.Thread(target=self._loop.run_forever, name="fastdeploy_lp-engine", daemon=True)
        self._thread.start()

    @property
    def is_current(self) -> bool:
        """Whether the caller is the loop's own thread, which must not wait for itself."""
        return threading.current_thread() is self._thread

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine there and wait for it; an interrupt of the caller cancels it and lets it clean up.

        Raises RuntimeError once it is closed.
        """
        ended = threading.Event()
        tasks: list[asyncio.Task[Result]] = []

        def note_end(task: asyncio.Task[Result]) -> None:
            # Asked for, so that asyncio does not complain when an interrupted caller never does.
            if not task.cancelled():
                task.exception()
            ended.set()

        def begin() -> None:
            tasks.append(self._loop.create_task(work))
            tasks[0].add_done_callback(note_end)

        def stop() -> None:
            if tasks:
                tasks[0].cancel()
            else:  # the interrupt came before `begin` was on its way
                work.close()
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
            work.close()
            raise RuntimeError("this LLM has been shut down")
        return tasks[0].result()

    def iterate(self, items: AsyncGenerator[Result, None]) -> Iterator[Result]:
        """What the generator yields, each item computed there; closing the iterator closes the generator.

        Nothing begins before the first item is asked for.
        """
        try:
            while found := self.run(_next(items)):
                yield found[0]
        finally:
            self._close_generator(items)

    def close(self) -> None:
        """Stop the loop, whatever still runs there cancelled, and join its thread."""
        with self._handing_over:
            self._closed = True
        asyncio.run_coroutine_threadsafe(_cancel_others(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _hand_over(self, call: Callable[[], None]) -> bool:
        """Have the loop call this; False once it is closed."""
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
            self.run(_close(items))


async def _next(items: AsyncGenerator[Result, None]) -> tuple[Result, ...]:
    """The next item alone in a tuple; an empty one at the end."""
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
