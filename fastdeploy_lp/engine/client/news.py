"""A wake-up call for one waiting task."""

from __future__ import annotations

import asyncio


class News:
    """Lets one task wait for news; news that arrives before it waits is kept.

    A plain future: asyncio.Event would cost several times as much per token.
    """

    def __init__(self) -> None:
        self._arrived = False
        self._waiter: asyncio.Future[None] | None = None

    def arrive(self) -> None:
        """Wakes the waiting task, or keeps the news for the next wait."""
        self._arrived = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self) -> None:
        """Waits for news since the last call."""
        if not self._arrived:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        self._arrived = False
