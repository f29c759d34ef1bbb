"""The start of child processes on an event loop."""

from __future__ import annotations

import asyncio
from typing import Any


async def start_whole(*command: str, **options: Any) -> asyncio.subprocess.Process:
    """`asyncio.create_subprocess_exec`, which a cancellation does not break off half-way: its pipes would stay open.

    A process whose caller was cancelled meanwhile is ended.
    """
    starting = asyncio.ensure_future(asyncio.create_subprocess_exec(*command, **options))
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        process = await starting
        process.kill()
        await process.communicate()
        raise
