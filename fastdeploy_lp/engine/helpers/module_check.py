"""Checks of uploaded modules in a separate process."""

from __future__ import annotations

import asyncio

from fastdeploy_lp.engine.helpers.frame_process import FrameProcess
from fastdeploy_lp.engine.helpers.turns import Turns

MODULE = "fastdeploy_lp.engine.helpers.module_process"
COMPILE_SECONDS = 10.0
"""CPU time that compiling a module may take."""

WALL_SECONDS = 120.0
"""Includes the start of the process on a busy machine."""

MAX_WAITING = 16
NICENESS = 10


class ModuleCheck:
    """Compiles modules one at a time, with clients taking turns; used from one event loop."""

    def __init__(self) -> None:
        self._turns = Turns(1, "a process that compiles their modules", MAX_WAITING)

    async def refusal(self, content: bytes, client: str) -> str | None:
        """Returns the reason why a module cannot be used, None if it can; raises QueueFullError."""
        await self._turns.take(client)
        try:
            process = await FrameProcess.start(MODULE, [str(COMPILE_SECONDS)], niceness=NICENESS)
            try:
                await process.send(content)
                return (await asyncio.wait_for(process.receive(), WALL_SECONDS)).decode() or None
            except (EOFError, asyncio.TimeoutError):
                return f"compiling it took longer than {COMPILE_SECONDS:g} s, or ended the compiler"
            finally:
                await process.end()
        finally:
            self._turns.give_back()
