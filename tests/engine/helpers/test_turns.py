"""Turns: bounded, in turns of the clients, and left at once by callers that leave."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from fastdeploy_lp.engine.errors import QueueFullError
from fastdeploy_lp.engine.helpers.turns import Turns


async def begun(turns: Turns, client: str, order: list[str], name: str) -> asyncio.Task[None]:
    """A caller that waits for a turn, and writes its name when it has one."""

    async def take() -> None:
        await turns.take(client)
        order.append(name)

    task = asyncio.create_task(take())
    await asyncio.sleep(0)
    return task


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 30))


def test_clients_go_one_after_the_other() -> None:
    async def scenario() -> None:
        turns, order = Turns(1, "a thread"), list[str]()
        names = ["a1", "a2", "a3", "b1", "b2"]
        tasks = [await begun(turns, name[0], order, name) for name in names]
        for task in (0, 1, 3, 2, 4):
            await tasks[task]
            turns.give_back()
        assert order == ["a1", "a2", "b1", "a3", "b2"]

    run(scenario())


def test_a_caller_that_leaves_takes_no_turn() -> None:
    async def scenario() -> None:
        turns, order = Turns(1, "a thread"), list[str]()
        await turns.take("a")
        left = [await begun(turns, "a", order, "left") for _ in range(30)]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        assert turns.num_waiting == 0
        stays = await begun(turns, "a", order, "stays")
        turns.give_back()
        await stays
        assert order == ["stays"]

    run(scenario())


def test_a_turn_of_a_caller_that_leaves_goes_to_the_next() -> None:
    async def scenario() -> None:
        turns, order = Turns(1, "a thread"), list[str]()
        await turns.take("a")
        leaves, stays = [await begun(turns, "a", order, name) for name in ("leaves", "stays")]
        # It has a turn and has not run since.
        turns.give_back()
        leaves.cancel()
        await stays
        assert order == ["stays"]
        turns.give_back()
        await turns.take("b")

    run(scenario())


def test_waiting_is_bounded_for_all_and_for_one_client() -> None:
    async def scenario() -> None:
        turns = Turns(1, "a thread", 8)
        await turns.take("a")
        waiting = [await begun(turns, client, [], "") for client in "aabbccdd"]
        with pytest.raises(QueueFullError, match="8 requests wait for a thread, and at most 8 may"):
            await turns.take("e")
        waiting.pop().cancel()
        await asyncio.sleep(0)
        with pytest.raises(QueueFullError, match="2 requests of this client wait for a thread, and at most 2 may"):
            await turns.take("a")
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    run(scenario())


def test_callers_that_leave_all_at_once_lose_no_turn() -> None:
    """As when a client closes its connections: the first one has just been told that it is its turn."""

    async def scenario() -> None:
        turns, order = Turns(1, "a thread"), list[str]()
        await turns.take("a")
        leaving = [await begun(turns, "a", order, "left") for _ in range(3)]
        turns.give_back()
        for task in leaving:
            task.cancel()
        ends = await asyncio.gather(*leaving, return_exceptions=True)
        assert all(isinstance(end, asyncio.CancelledError) for end in ends)
        await turns.take("b")
        assert turns.num_waiting == 0

    run(scenario())
