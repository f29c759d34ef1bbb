"""Several streams read as one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeVar

Item = TypeVar("Item")


async def merged(streams: Sequence[AsyncGenerator[Item, None]]) -> AsyncGenerator[tuple[int, Item], None]:
    """Items of all streams as they come, each with the index of its stream; raises what the first failing one raises.

    Leaving closes all of them. A slow reader holds back the streams themselves: one item at a time waits here.
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
        # Not when cancelled: nobody reads any more then, and a full queue would never take it.
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
