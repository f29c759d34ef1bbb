"""Merges several streams into one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeVar

Item = TypeVar("Item")


async def merged(streams: Sequence[AsyncGenerator[Item, None]]) -> AsyncGenerator[tuple[int, Item], None]:
    """Yields items of all streams as they arrive, each with its stream's index; raises the first stream error.

    Closing it closes all streams. A slow reader slows the streams down: only one item waits here.
    """
    queue: asyncio.Queue[tuple[int, Item] | None] = asyncio.Queue(maxsize=1)

    async def forward(index: int, stream: AsyncGenerator[Item, None]) -> None:
        async with aclosing(stream):
            async for item in stream:
                await queue.put((index, item))

    async def forward_all() -> Exception | None:
        error = None
        try:
            await asyncio.gather(*readers)
        except Exception as raised:  # noqa: BLE001 - the reader gets it
            error = raised
        # Skipped when cancelled: there is no reader then, and a full queue would block forever.
        await queue.put(None)
        return error

    readers = [asyncio.ensure_future(forward(index, stream)) for index, stream in enumerate(streams)]
    everyone = asyncio.ensure_future(forward_all())
    try:
        while (item := await queue.get()) is not None:
            yield item
        error = await everyone
        if error is not None:
            raise error
    finally:
        for task in (*readers, everyone):
            task.cancel()
        await asyncio.gather(*readers, everyone, return_exceptions=True)
