"""A loop in a thread: its end leaves nobody waiting."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress

import pytest

from fastdeploy_lp.entrypoints.loop_thread import LoopThread

CALLERS = 4
SECONDS = 30.0


def call_for_ever(loop: LoopThread) -> None:
    while True:
        with suppress(asyncio.CancelledError):
            loop.run(asyncio.sleep(0))


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
            loop.run(forever())
        except asyncio.CancelledError as error:
            ends.append(error)

    caller = threading.Thread(target=call, daemon=True)
    caller.start()
    assert began.wait(SECONDS)
    loop.close()
    caller.join(SECONDS)
    assert len(ends) == 1
