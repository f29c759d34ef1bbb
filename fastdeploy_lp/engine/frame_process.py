"""A child process that takes frames on its standard input and answers with frames on its standard output."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import sys
import time
from collections.abc import Sequence

from fastdeploy_lp import shared_memory
from fastdeploy_lp.config import KEY_VARIABLES
from fastdeploy_lp.engine.frames import HEAD_BYTES, framed, size_of
from fastdeploy_lp.engine.subprocesses import start_whole

# One thread a process: its work is not made of large products.
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "FLAGS_paddle_num_threads")
END_SECONDS = 5.0


class FrameProcess:
    """One Python module in a process of its own, which ends with this one; lives on one event loop.

    The process is in a process group of its own, which Ctrl-C in a terminal does not reach. The keys of clients are not
    in its environment.
    """

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(
        cls, module: str, arguments: Sequence[str] = (), *, niceness: int = 0, silent: bool = False
    ) -> FrameProcess:
        """Start `python -m module arguments`, which is not ready yet.

        niceness: of the process from its first moment, since its imports take seconds. silent: what it writes to
        standard error is dropped.
        """
        own = {name: value for name, value in os.environ.items() if name not in KEY_VARIABLES}
        path = os.pathsep.join(dict.fromkeys(each or os.getcwd() for each in sys.path))
        process = await start_whole(
            *(sys.executable, "-m", module, *arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL if silent else None,
            # Not a session: Linux divides processors among sessions first, and priorities count within one only.
            preexec_fn=os.setpgrp,
            env={**own, **dict.fromkeys(THREADS, "1"), "PYTHONPATH": path},
        )
        # It may have just ended.
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, process.pid, niceness)
        return cls(process)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def runs(self) -> bool:
        """True until it has ended."""
        return self._process.returncode is None

    @property
    def cpu_seconds(self) -> float:
        """Processor time that it has taken; without end where the system does not tell."""
        try:
            # Linux's number of the clock that counts a process's time.
            return time.clock_gettime((~self._process.pid << 3) | 2)
        except OSError:
            return math.inf

    async def send(self, content: bytes) -> None:
        """Send one frame; a process that has ended takes none, which the next `receive` raises."""
        pipe = self._process.stdin
        if pipe is None:
            raise EOFError
        pipe.write(framed(content))
        with contextlib.suppress(ConnectionError):
            await pipe.drain()

    async def receive(self) -> bytes:
        """Wait for one frame; raises EOFError if the process ends first."""
        pipe = self._process.stdout
        if pipe is None:
            raise EOFError
        return await pipe.readexactly(size_of(await pipe.readexactly(HEAD_BYTES)))

    async def end(self) -> int | None:
        """End the process, whatever it does; returns its status."""
        if self.runs:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        # Closes the pipes, too.
        await self._process.communicate()
        shared_memory.remove_of(self.pid)
        return self._process.returncode

    async def status(self) -> int | None:
        """Wait for a process that has closed its pipe to end by itself; returns its status."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._process.wait(), END_SECONDS)
        return await self.end()
