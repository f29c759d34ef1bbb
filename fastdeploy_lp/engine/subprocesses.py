"""Starts child processes on an event loop."""

from __future__ import annotations

import asyncio
from typing import Any


async def start_whole(*command: str, **options: Any) -> asyncio.subprocess.Process:
    """`asyncio.create_subprocess_exec` that a cancellation does not interrupt: otherwise its pipes would stay open.

    If the caller is cancelled meanwhile, the process is killed.
    """
    starting = asyncio.ensure_future(asyncio.create_subprocess_exec(*command, **options))
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        process = await starting
        process.kill()
        await process.communicate()
        raise
