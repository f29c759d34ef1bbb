"""A child process that reads frames from standard input and writes frames to standard output."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

from fastdeploy_lp.config import KEY_VARIABLES
from fastdeploy_lp.engine.helpers.frames import HEAD_BYTES, framed, size_of
from fastdeploy_lp.platforms import shared_memory


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


# One thread per process: its work has no large matrix products.
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "FLAGS_paddle_num_threads")
END_SECONDS = 5.0


class FrameProcess:
    """A Python module in a separate process, which ends with this process; used from one event loop.

    The process has its own process group, which Ctrl-C in a terminal does not reach. Its environment does not contain
    the keys of clients.
    """

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(
        cls, module: str, arguments: Sequence[str] = (), *, niceness: int = 0, silent: bool = False
    ) -> FrameProcess:
        """Starts `python -m module arguments`; the process is not ready yet.

        niceness: of the process from its start, since its imports take seconds. silent: its standard error is
        discarded.
        """
        own = {name: value for name, value in os.environ.items() if name not in KEY_VARIABLES}
        path = os.pathsep.join(dict.fromkeys(each or os.getcwd() for each in sys.path))
        process = await start_whole(
            *(sys.executable, "-m", module, *arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL if silent else None,
            # Not a session: Linux divides CPU time among sessions first, and priorities count only within a session.
            preexec_fn=os.setpgrp,
            env={**own, **dict.fromkeys(THREADS, "1"), "PYTHONPATH": path},
        )
        started = cls(process)
        started.set_niceness(niceness)
        return started

    def set_niceness(self, niceness: int) -> None:
        """Sets the niceness of all threads of the process; this process's own niceness is the least."""
        own = os.getpriority(os.PRIO_PROCESS, 0)
        # The process may have just ended.
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PGRP, self.pid, max(niceness, own))

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def runs(self) -> bool:
        """True until the process has ended."""
        return self._process.returncode is None

    @property
    def cpu_seconds(self) -> float:
        """CPU time used, in seconds; infinity if the system does not report it."""
        try:
            # Linux's clock id of a process's CPU time.
            return time.clock_gettime((~self._process.pid << 3) | 2)
        except OSError:
            return math.inf

    async def send(self, content: bytes) -> None:
        """Sends one frame; if the process has ended, the next `receive` raises."""
        pipe = self._process.stdin
        if pipe is None:
            raise EOFError
        pipe.write(framed(content))
        with contextlib.suppress(ConnectionError):
            await pipe.drain()

    async def receive(self) -> bytes:
        """Waits for one frame; raises EOFError if the process ends first."""
        pipe = self._process.stdout
        if pipe is None:
            raise EOFError
        return await pipe.readexactly(size_of(await pipe.readexactly(HEAD_BYTES)))

    async def end(self) -> int | None:
        """Kills the process and returns its exit status."""
        if self.runs:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        # Also closes the pipes.
        await self._process.communicate()
        shared_memory.remove_of(self.pid)
        return self._process.returncode

    async def status(self) -> int | None:
        """Waits for a process that has closed its pipe, and kills it after `END_SECONDS`; returns its exit status."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._process.wait(), END_SECONDS)
        return await self.end()
