"""Splits long loops on the event loop into pieces."""

from __future__ import annotations

import asyncio
import time

# Seconds of work before yielding to other tasks.
PIECE = 0.004


class Pace:
    """Splits one caller's work: `rest` yields to the event loop's other tasks after each piece."""

    def __init__(self) -> None:
        self._began = time.perf_counter()

    async def rest(self) -> None:
        """Yields to other tasks if the piece is over; otherwise returns at once."""
        if time.perf_counter() - self._began > PIECE:
            await asyncio.sleep(0)
            self._began = time.perf_counter()
