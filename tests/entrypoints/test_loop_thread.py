"""A loop in a thread: its end leaves nobody waiting."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from types import FrameType
from typing import Any

import pytest

from fastdeploy_lp.entrypoints import loop_thread
from fastdeploy_lp.entrypoints.loop_thread import LoopThread

CALLERS = 4
SECONDS = 30.0


def call_for_ever(loop: LoopThread) -> None:
    while True:
        with suppress(asyncio.CancelledError):
            loop.run(asyncio.sleep, 0)


def test_callers_that_come_at_the_end_are_not_left_waiting() -> None:
    for _ in range(20):
        loop, refused = LoopThread(), threading.Barrier(CALLERS + 1)

        def call_until_closed(loop: LoopThread = loop, refused: threading.Barrier = refused) -> None:
            with pytest.raises(RuntimeError, match="has been shut down"):
                call_for_ever(loop)
            refused.wait(SECONDS)

        callers = [threading.Thread(target=call_until_closed, daemon=True) for _ in range(CALLERS)]
        for each in callers:
            each.start()
        loop.close()
        refused.wait(SECONDS)


def test_what_still_runs_at_the_end_is_cancelled() -> None:
    loop, began, ends = LoopThread(), threading.Event(), list[BaseException]()

    async def forever() -> None:
        began.set()
        await asyncio.Event().wait()

    def call() -> None:
        try:
            loop.run(forever)
        except asyncio.CancelledError as error:
            ends.append(error)

    caller = threading.Thread(target=call, daemon=True)
    caller.start()
    assert began.wait(SECONDS)
    loop.close()
    caller.join(SECONDS)
    assert len(ends) == 1


def interrupted_at(place: int, call: Callable[[], object]) -> bool:
    """Runs a call with a KeyboardInterrupt at one line or entry of the loop thread's code; False if it ended first."""
    seen = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal seen
        if frame.f_code.co_filename != loop_thread.__file__ or event not in ("call", "line"):
            return None
        seen += 1
        if seen == place:
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


async def count() -> AsyncGenerator[int, None]:
    for number in range(2):
        await asyncio.sleep(0)
        yield number


def test_an_interrupt_at_any_line_leaves_no_coroutine_that_nobody_awaits() -> None:
    loop, place = LoopThread(), 1
    # Warnings of coroutines that nobody awaited fail the test.
    while interrupted_at(place, lambda: list(loop.iterate(count()))):
        # The young objects alone: all those of a process that has run other tests take a second.
        gc.collect(1)
        assert loop.run(asyncio.sleep, 0, "it still runs") == "it still runs"
        place += 1
    loop.close()
    gc.collect()
    assert place > 20


def test_a_call_that_makes_no_coroutine_fails_its_caller() -> None:
    loop = LoopThread()
    with pytest.raises(TypeError):
        loop.run(len)  # type: ignore[arg-type]
    assert loop.run(asyncio.sleep, 0, "it still runs") == "it still runs"
    loop.close()
