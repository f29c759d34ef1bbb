"""Long loops on the event loop, in pieces."""

from __future__ import annotations

import asyncio
import time

# Seconds at a time, after which others get their turn.
PIECE = 0.004


class Pace:
    """Divides the work of one caller: `rest` lets the event loop's other callers run when a piece is over."""

    def __init__(self) -> None:
        self._began = time.perf_counter()

    async def rest(self) -> None:
        """Return at once while the piece is not over."""
        if time.perf_counter() - self._began > PIECE:
            await asyncio.sleep(0)
            self._began = time.perf_counter()
