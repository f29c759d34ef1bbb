"""Trials of arguments in separate processes, where a crash or an endless call harms nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Sequence
from typing import Any

import cloudpickle
import msgspec

from fastdeploy_lp.config import KEY_VARIABLES, FDConfig
from fastdeploy_lp.engine.trial_messages import Trial, TrialResult, TrialStart
from fastdeploy_lp.logits_processor import DeclaredProcessor
from fastdeploy_lp.logits_processor.author_threads import NotInTimeError, Outcome

MODULE = "fastdeploy_lp.engine.trial_process"
# At a time; each takes a core while it works, and stays for the next trial.
PROCESSES = 2
# To import what the processors need, such as torch on a busy machine.
START_SECONDS = 120.0
END_SECONDS = 5.0
# A row operation needs no team of threads.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "FLAGS_paddle_num_threads": "1"}


class Trials:
    """Tries the arguments of requests on processors whose dialect builds an instance a request; lives on one loop.

    A trial that ends its process, or takes longer than `timeout` seconds (0 for no limit), concerns its own request;
    the next trial has another process. Processes start when they are first needed.
    """

    def __init__(self, fd_config: FDConfig, declared: Sequence[DeclaredProcessor], timeout: float) -> None:
        self._timeout = timeout
        self._start = TrialStart(
            fd_config,
            {each.name: each.spec for each in declared},
            {each.spec: cloudpickle.dumps(each.found) for each in declared if each.given_as_object},
        )
        self._turns = asyncio.Semaphore(PROCESSES)
        self._idle: list[_Process] = []

    async def outcome(self, name: str, args: dict[str, Any]) -> Outcome:
        """None, or the ValueError that refuses the arguments; NotInTimeError if they cannot be tried in time."""
        async with self._turns:
            process = self._ready_process()
            try:
                if not await process.start(self._start):
                    await process.end()
                    return Outcome(error=NotInTimeError(f"logits processor {name}: no process to try arguments starts"))
                refusal = await asyncio.wait_for(process.run(Trial(name, args)), self._timeout or None)
            except asyncio.TimeoutError:
                await process.end()
                return Outcome(error=NotInTimeError(_too_slow(name, self._timeout)))
            except EOFError:
                status = await process.ended()
                how = f"it ended the process in which its arguments were tried (status {status})"
                return Outcome(error=ValueError(how))
            except BaseException:
                await process.end()
                raise
            self._idle.append(process)
        return Outcome(error=None if refusal is None else ValueError(refusal))

    def _ready_process(self) -> _Process:
        """An idle process, or a new one: what an earlier trial left behind may have ended one meanwhile."""
        self._idle = [each for each in self._idle if each.runs]
        return self._idle.pop() if self._idle else _Process()

    async def close(self) -> None:
        """End the processes."""
        while self._idle:
            await self._idle.pop().end()


class _Process:
    """One process, which tries one set of arguments at a time."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None

    @property
    def runs(self) -> bool:
        """True until it has ended."""
        return self._process is not None and self._process.returncode is None

    async def start(self, start: TrialStart) -> bool:
        """Start it unless it runs; False if it ends or takes too long before it is ready."""
        if self._process is not None:
            return True
        own = {name: value for name, value in os.environ.items() if name not in KEY_VARIABLES}
        path = os.pathsep.join(dict.fromkeys(each or os.getcwd() for each in sys.path))
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", MODULE),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
            env={**own, **ENVIRONMENT, "PYTHONPATH": path},
        )
        try:
            await asyncio.wait_for(self._exchange(msgspec.msgpack.encode(start)), START_SECONDS)
        except (EOFError, asyncio.TimeoutError):
            return False
        return True

    async def run(self, trial: Trial) -> str | None:
        """Why the arguments are refused, None if they are not; raises EOFError if the process ends."""
        return (await self._exchange(msgspec.msgpack.encode(trial))).refusal

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

    async def _exchange(self, content: bytes) -> TrialResult:
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise EOFError
        process.stdin.write(len(content).to_bytes(8, "big") + content)
        with contextlib.suppress(ConnectionError):  # it has ended; the read below raises
            await process.stdin.drain()
        length = int.from_bytes(await process.stdout.readexactly(8), "big")
        return msgspec.msgpack.decode(await process.stdout.readexactly(length), type=TrialResult)


def _too_slow(name: str, timeout: float) -> str:
    return f"logits processor {name}: its own code took longer than {timeout:g} s"
