"""Runs an action on many items with bounded concurrency."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

Item = TypeVar("Item")


async def for_each(items: Iterator[Item], action: Callable[[Item], Awaitable[None]], concurrency: int) -> None:
    """Runs `action` on every item, taken in order; the first failure, or cancellation, cancels the running ones."""

    async def work() -> None:
        for item in items:
            await action(item)

    tasks = [asyncio.ensure_future(work()) for _ in range(concurrency)]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
