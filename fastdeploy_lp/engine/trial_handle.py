"""One process that checks requests, as the API process sees it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys

import msgspec

from fastdeploy_lp import shared_memory
from fastdeploy_lp.config import KEY_VARIABLES
from fastdeploy_lp.engine.trial_messages import Ready, Reply, TrialStart

MODULE = "fastdeploy_lp.engine.trial_process"
# To import what the processors need, such as torch on a busy machine.
START_SECONDS = 120.0
END_SECONDS = 5.0
# A row operation needs no team of threads.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "FLAGS_paddle_num_threads": "1"}


class TrialHandle:
    """Starts the process, and exchanges messages with it: one request at a time."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None

    @property
    def runs(self) -> bool:
        """True until it has ended."""
        return self._process is not None and self._process.returncode is None

    async def start(self, start: TrialStart) -> bool:
        """Start it; False if it ends or takes too long before it is ready."""
        own = {name: value for name, value in os.environ.items() if name not in KEY_VARIABLES}
        path = os.pathsep.join(dict.fromkeys(each or os.getcwd() for each in sys.path))
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", MODULE),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
            env={**own, **ENVIRONMENT, "PYTHONPATH": path},
        )
        self.send(msgspec.msgpack.encode(start))
        try:
            return isinstance(await asyncio.wait_for(self.reply(), START_SECONDS), Ready)
        except (EOFError, asyncio.TimeoutError):
            return False

    def send(self, content: bytes) -> None:
        """Send an encoded message; if the process has ended, the next `reply` tells."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.write(len(content).to_bytes(8, "big") + content)

    async def reply(self) -> Reply:
        """The next message of the process; raises EOFError if it has ended."""
        if self._process is None or self._process.stdout is None:
            raise EOFError
        length = int.from_bytes(await self._process.stdout.readexactly(8), "big")
        reply: Reply = msgspec.msgpack.decode(await self._process.stdout.readexactly(length), type=Reply)
        return reply

    async def ended(self) -> int | None:
        """Wait until the process has ended by itself, as its closed pipe announces; returns its status."""
        if self._process is not None:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._process.wait(), END_SECONDS)
        await self.end()
        return None if self._process is None else self._process.returncode

    async def end(self) -> None:
        """End the process, whatever it does."""
        process = self._process
        if process is None:
            return
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        # Closes the pipes, too.
        await process.communicate()
        shared_memory.remove_of(process.pid)
