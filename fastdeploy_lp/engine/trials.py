"""Checks of requests by processors' own code, in processes where a crash or an endless call harms nothing else."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager

import cloudpickle
import msgspec

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.engine.frame_process import FrameProcess
from fastdeploy_lp.engine.trial_messages import Accepted, Entering, Ready, Refused, Reply, Trial, TrialStart
from fastdeploy_lp.logits_processor import DeclaredProcessor, RequestArgsError, Selection
from fastdeploy_lp.logits_processor.author_threads import NotInTimeError
from fastdeploy_lp.sampling_params import SamplingParams

MODULE = "fastdeploy_lp.engine.trial_process"
# To import what the processors need, such as torch on a busy machine.
START_SECONDS = 120.0
# Processes at a time. Each but the first starts when a request needs it, and stays.
PROCESSES = 4
# Of these, how many may check requests of one processor: a slow one leaves room for others.
PROCESSES_EACH = 2


class UnsendableError(TypeError):
    """Parameters that no message can hold; `RequestArgsValidator.validate` names the place."""


class Trials:
    """Checks requests whose check runs the code of processors' authors; lives on one loop.

    A check that ends its process, or has one call that takes longer than `timeout` seconds (0 for no limit), concerns
    its own request; the next one has another process.
    """

    def __init__(self, fd_config: FDConfig, declared: Sequence[DeclaredProcessor], timeout: float) -> None:
        self._timeout = timeout or None
        self._fd_config = fd_config
        self._declared = list(declared)
        self._busy: Counter[str] = Counter()
        self._running = 0
        self._waiting: list[asyncio.Future[None]] = []
        self._idle: list[FrameProcess] = []
        self._first: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start a process beside everything else if a request may need one, so that the first one need not wait."""
        if self._first is None and any(each.checks_with_own_code for each in self._declared):
            self._first = asyncio.create_task(self._start_first())

    async def _start_first(self) -> None:
        process = await self._started()
        if process is not None:
            self._idle.append(process)

    async def selection(self, params: SamplingParams, authors: Collection[str]) -> Selection:
        """The request's choice; `authors`: the processors whose own code may run.

        Raises RequestArgsError, UnsendableError, and NotInTimeError if a call does not return in time or no process is
        free in time.
        """
        try:
            trial = msgspec.msgpack.encode(Trial(params))
        except (TypeError, OverflowError, UnicodeEncodeError) as error:
            raise UnsendableError from error
        async with self._turn(authors):
            process = await self._ready_process(authors)
            try:
                return await self._checked(process, trial)
            except RequestArgsError:
                raise
            except BaseException:
                await process.end()
                raise
            finally:
                self._idle.append(process)

    async def close(self) -> None:
        """End the processes."""
        if self._first is not None:
            self._first.cancel()
            await asyncio.wait([self._first])
        while self._idle:
            await self._idle.pop().end()

    async def _checked(self, process: FrameProcess, trial: bytes) -> Selection:
        await process.send(trial)
        entered: Entering | None = None
        while True:
            try:
                reply = await asyncio.wait_for(_reply(process), self._timeout)
            except asyncio.TimeoutError:
                name = "" if entered is None else f" {entered.processor}"
                reason = f"logits processor{name}: its own code took longer than {self._timeout:g} s"
                raise NotInTimeError(reason) from None
            except EOFError:
                status = await process.status()
                if entered is None:
                    raise NotInTimeError(f"the process that checks requests ended (status {status})") from None
                reason = f"it ended the process in which its arguments were tried (status {status})"
                raise RequestArgsError(entered.path, f"{entered.processor}: {reason}") from None
            if isinstance(reply, Accepted):
                return reply.selection
            if isinstance(reply, Refused):
                raise RequestArgsError(reply.path, reply.reason)
            entered = reply if isinstance(reply, Entering) else entered

    async def _ready_process(self, authors: Collection[str]) -> FrameProcess:
        """An idle process, or a new one: what an earlier check left behind may have ended one meanwhile."""
        if self._first is not None:
            await asyncio.wait([self._first])
        self._idle = [each for each in self._idle if each.runs]
        process = self._idle.pop() if self._idle else await self._started()
        if process is None:
            raise NotInTimeError(f"logits processors {_listed(authors)}: no process starts that checks requests")
        return process

    async def _started(self) -> FrameProcess | None:
        """A new process; None if it ends or takes too long before it is ready."""
        process, ready = await FrameProcess.start(MODULE), False
        try:
            await process.send(msgspec.msgpack.encode(self._chain()))
            ready = isinstance(await asyncio.wait_for(_reply(process), START_SECONDS), Ready)
        except (EOFError, asyncio.TimeoutError):
            pass
        finally:
            if not ready:
                await process.end()
        return process if ready else None

    def _chain(self) -> TrialStart:
        return TrialStart(
            self._fd_config,
            [each.spec for each in self._declared],
            [each.name for each in self._declared if each.mandatory],
            {each.spec: cloudpickle.dumps(each.found) for each in self._declared if each.given_as_object},
        )

    @asynccontextmanager
    async def _turn(self, authors: Collection[str]) -> AsyncIterator[None]:
        """Waits for one of the processes, no longer than a call may take."""
        # In this task: a turn that another one took might be lost when this one is cancelled.
        deadline = None if self._timeout is None else time.monotonic() + self._timeout
        while not self._has_room(authors):
            waiter = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
            done, _ = await asyncio.wait([waiter], timeout=left)
            if not done:
                reason = f"logits processors {_listed(authors)}: earlier calls of their code have not returned"
                raise NotInTimeError(reason)
        self._running += 1
        self._busy.update(authors)
        try:
            yield
        finally:
            self._running -= 1
            self._busy.subtract(authors)
            woken, self._waiting = self._waiting, []
            for each in woken:
                if not each.done():
                    each.set_result(None)

    def _has_room(self, authors: Collection[str]) -> bool:
        return self._running < PROCESSES and all(self._busy[name] < PROCESSES_EACH for name in authors)


async def _reply(process: FrameProcess) -> Reply:
    """The next message of the process; raises EOFError if it has ended."""
    reply: Reply = msgspec.msgpack.decode(await process.receive(), type=Reply)
    return reply


def _listed(names: Collection[str]) -> str:
    return ", ".join(sorted(names))
