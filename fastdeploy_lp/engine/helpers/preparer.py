"""Calls of processors' `prepare`, in a process beside the server."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.engine.errors import QueueFullError
from fastdeploy_lp.engine.helpers.frame_process import FrameProcess
from fastdeploy_lp.engine.helpers.prepare_process import (
    BLOCKED_SECONDS,
    Blocked,
    CancelCall,
    Cancelled,
    PrepareCall,
    Prepared,
    PrepareReply,
)
from fastdeploy_lp.engine.helpers.trial_process import Ready
from fastdeploy_lp.engine.helpers.trials import start_of
from fastdeploy_lp.logits_processor import DeclaredProcessor, PrepareRequest

MODULE = "fastdeploy_lp.engine.helpers.prepare_process"
# Covers the processors' imports, such as torch on a busy machine.
START_SECONDS = 120.0
# Steps of the worker have priority when there are fewer cores than processes.
NICENESS = 10
# A process whose event loop does not answer in this time is ended.
ANSWER_SECONDS = 2 * BLOCKED_SECONDS
# Processes in which a call may run before it fails: calls of others may end them.
ATTEMPTS = 3
# A processor whose calls have blocked as many processes in this time is called no more until one of them is that old:
# a new process takes seconds of a core.
MAX_BLOCKED, BLOCKED_MEMORY_SECONDS = 3, 60.0


class PreparationFailedError(RuntimeError):
    """A call of `prepare` has no value; the message is the reason. `blocked`: it has blocked the event loop."""

    def __init__(self, message: str, *, blocked: bool = False) -> None:
        super().__init__(message)
        self.blocked = blocked


class _ProcessEndedError(RuntimeError):
    """The process ended during a call that is not known to have ended it."""


class _Calls:
    """A process with its calls in flight."""

    def __init__(self, process: FrameProcess) -> None:
        self._process = process
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._answers: dict[int, asyncio.Event] = {}
        # True until the process has ended.
        self.runs = True
        self._reading = asyncio.create_task(self._read())

    async def value(self, number: int, processor: str, request: PrepareRequest) -> bytes:
        """Returns a call's value in msgpack; a cancelled caller cancels the call."""
        found = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            await self._process.send(msgspec.msgpack.encode(PrepareCall(number, processor, request)))
            value: bytes = await found
            return value
        finally:
            del self._waiting[number]

    async def cancel(self, number: int) -> None:
        """Cancels a call; ends a process that does not answer."""
        answer = self._answers[number] = asyncio.Event()
        try:
            await self._process.send(msgspec.msgpack.encode(CancelCall(number)))
            await asyncio.wait_for(answer.wait(), ANSWER_SECONDS)
        except asyncio.TimeoutError:
            await self._process.end()
        finally:
            del self._answers[number]

    async def end(self) -> None:
        """Ends the process."""
        self._reading.cancel()
        await asyncio.wait([self._reading])
        await self._process.end()

    async def _read(self) -> None:
        error: Exception = _ProcessEndedError()
        blocked: int | None = None
        with suppress(EOFError):
            while True:
                reply: PrepareReply = msgspec.msgpack.decode(await self._process.receive(), type=PrepareReply)
                if isinstance(reply, Cancelled) and reply.number in self._answers:
                    self._answers[reply.number].set()
                elif isinstance(reply, Blocked):
                    blocked = reply.number
                elif isinstance(reply, Prepared):
                    self._settle(reply)
        self.runs = False
        for event in self._answers.values():
            event.set()
        for number, found in self._waiting.items():
            if not found.done():
                reason = f"it blocked its event loop for more than {BLOCKED_SECONDS:g} s; await, or use a thread"
                found.set_exception(PreparationFailedError(reason, blocked=True) if number == blocked else error)
        await self._process.end()

    def _settle(self, reply: Prepared) -> None:
        found = self._waiting.get(reply.number)
        if found is None or found.done():
            return
        if reply.error is None:
            found.set_result(reply.value)
        else:
            found.set_exception(PreparationFailedError(reply.error))


class Preparer:
    """Runs calls of `prepare`; used from one event loop.

    declared: the chain, of which the process loads the processors with a `prepare`. most: limit of calls in flight.
    A call that blocks its process's event loop fails; the other calls run again in a new process.
    """

    def __init__(self, fd_config: FDConfig, declared: Sequence[DeclaredProcessor], most: int) -> None:
        self._fd_config = fd_config
        self._declared = [each for each in declared if each.late_value is not None]
        self._most = most
        self._numbers = itertools.count()
        self._num_calls = 0
        # By processor, when its latest calls blocked a process, oldest first.
        self._blocked: dict[str, deque[float]] = {}
        self._calls: _Calls | None = None
        self._starting: asyncio.Task[_Calls] | None = None
        # Cancellations in flight, and others that must not be collected.
        self._cancelling: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Starts the process in the background, so that the first request does not wait."""
        if self._calls is None and self._starting is None:
            self._starting = asyncio.create_task(self._started())
            # The first call reports the failure.
            self._starting.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def ready(self) -> None:
        """Waits for a process; raises PreparationFailedError if none starts."""
        await self._running()

    async def value(self, processor: str, request: PrepareRequest) -> Any:
        """Returns the value of a processor's `prepare`; a cancelled caller cancels the call.

        Raises PreparationFailedError if it has none, and QueueFullError while too many calls run.
        """
        if self._num_calls >= self._most:
            raise QueueFullError(f"{self._num_calls} requests wait for their processors' values; try again later")
        blocked = self._blocked.setdefault(processor, deque(maxlen=MAX_BLOCKED))
        if len(blocked) == MAX_BLOCKED and time.monotonic() - blocked[0] < BLOCKED_MEMORY_SECONDS:
            raise PreparationFailedError(f"{MAX_BLOCKED} calls have blocked the event loop lately; try again later")
        self._num_calls += 1
        try:
            return msgspec.msgpack.decode(await self._content(processor, request))
        except PreparationFailedError as error:
            if error.blocked:
                blocked.append(time.monotonic())
            raise
        finally:
            self._num_calls -= 1

    async def close(self) -> None:
        """Ends the process."""
        for task in (self._starting, *self._cancelling):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
        if self._calls is not None:
            await self._calls.end()

    async def _content(self, processor: str, request: PrepareRequest) -> bytes:
        for _ in range(ATTEMPTS):
            calls, number = await self._running(), next(self._numbers)
            try:
                return await calls.value(number, processor, request)
            except _ProcessEndedError:
                continue
            except asyncio.CancelledError:
                task = asyncio.create_task(calls.cancel(number))
                self._cancelling.add(task)
                task.add_done_callback(self._cancelling.discard)
                raise
        raise PreparationFailedError("the process in which it ran ended")

    async def _running(self) -> _Calls:
        if self._calls is not None and self._calls.runs:
            return self._calls
        self._calls = None
        self.start()
        starting = self._starting
        if starting is None:
            raise PreparationFailedError("no process starts")
        try:
            # A cancelled caller does not stop the start, for which others wait.
            self._calls = await asyncio.shield(starting)
        finally:
            if starting.done() and self._starting is starting:
                self._starting = None
        return self._calls

    async def _started(self) -> _Calls:
        process = await FrameProcess.start(MODULE, niceness=NICENESS)
        try:
            await process.send(msgspec.msgpack.encode(start_of(self._fd_config, self._declared)))
            content = await asyncio.wait_for(process.receive(), START_SECONDS)
            if isinstance(msgspec.msgpack.decode(content, type=PrepareReply), Ready):
                return _Calls(process)
        except (EOFError, asyncio.TimeoutError):
            pass
        except BaseException:
            await process.end()
            raise
        await process.end()
        raise PreparationFailedError("no process starts that calls prepare of logits processors")
