"""Work in threads: the loop serves others meanwhile, and work whose caller has left is not begun."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

import pytest

from fastdeploy_lp.engine.prepare.preparation import THREADS, HostThreads

SECONDS = 30.0


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, SECONDS))


def test_the_loop_goes_on_while_work_runs() -> None:
    async def scenario() -> None:
        threads, may_end = HostThreads(), threading.Event()
        working = asyncio.create_task(threads.run(lambda: may_end.wait(SECONDS)))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not working.done()
        may_end.set()
        assert await working
        threads.close()

    run(scenario())


def test_an_exception_is_the_callers() -> None:
    async def scenario() -> None:
        threads = HostThreads()
        with pytest.raises(ZeroDivisionError):
            await threads.of("client")(lambda: 1 // 0)
        assert await threads.of("client")(lambda: 5) == 5
        threads.close()

    run(scenario())


def test_work_of_callers_who_left_is_not_begun() -> None:
    async def scenario() -> None:
        threads, may_end, begun = HostThreads(), threading.Event(), list[str]()
        running = [asyncio.create_task(threads.run(lambda: may_end.wait(SECONDS))) for _ in range(THREADS)]
        left = [asyncio.create_task(threads.run(lambda: begun.append("left"))) for _ in range(10)]
        await asyncio.sleep(0)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        may_end.set()
        await asyncio.gather(*running)
        await threads.run(lambda: begun.append("next"))
        assert begun == ["next"]
        threads.close()

    run(scenario())
