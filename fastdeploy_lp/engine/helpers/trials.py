"""Request checks by processors' own code, in separate processes that isolate crashes and endless calls."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from contextlib import suppress

import cloudpickle
import msgspec

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.engine.helpers.frame_process import FrameProcess
from fastdeploy_lp.engine.helpers.process_pool import Lane, ProcessPool, SlowPlaces
from fastdeploy_lp.engine.helpers.trial_process import (
    UNSENDABLE,
    Accepted,
    Entering,
    Ready,
    Refused,
    Reply,
    Trial,
    TrialStart,
)
from fastdeploy_lp.engine.helpers.turns import MAX_WAITING, Turns
from fastdeploy_lp.logits_processor import DeclaredProcessor, RequestArgsError, Selection
from fastdeploy_lp.logits_processor.arguments.request import NOTHING_IMPOSED, Imposed
from fastdeploy_lp.logits_processor.chain.author_threads import NotInTimeError
from fastdeploy_lp.request.sampling_params import SamplingParams

MODULE = "fastdeploy_lp.engine.helpers.trial_process"
# Covers the processors' imports, such as torch on a busy machine.
START_SECONDS = 120.0
# Concurrent new checks: one process, which has imported everything that the processors need.
QUICK_PROCESSES = 1
# Concurrent slow checks, in all and per processor whose code is slow.
SLOW_PROCESSES = 6
SLOW_PROCESSES_EACH = 3
# A call that takes longer gives up its turn.
QUICK_SECONDS = 0.25
# Steps of the worker have priority when there are fewer cores than processes.
NICENESS = 10


class UnsendableError(TypeError):
    """The parameters cannot be encoded as a message; `RequestArgsValidator.validate` names the place."""


class Trials:
    """Checks requests with the code of processors' authors; used from one event loop.

    A check that ends its process, or has a call longer than `timeout` seconds (0 for no limit), fails only its own
    request; the next check gets another process. Checks start one at a time, with clients taking turns. A slow check
    continues in parallel; if too many are slow already, it is given up, so that slow code of one processor does not
    delay requests without it.

    most: limit of requests waiting for a turn.
    """

    def __init__(
        self, fd_config: FDConfig, declared: Sequence[DeclaredProcessor], timeout: float, most: int = MAX_WAITING
    ) -> None:
        self._timeout = timeout or None
        self._fd_config = fd_config
        self._declared = list(declared)
        turns = Turns(QUICK_PROCESSES, "a process that checks their arguments", most)
        slow_places = SlowPlaces(SLOW_PROCESSES, SLOW_PROCESSES_EACH)
        self._pool = ProcessPool(self._started, turns, slow_places)
        self._first: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Starts a process in the background if requests may need one, so that the first request does not wait."""
        if self._first is None and any(each.checks_with_own_code for each in self._declared):
            self._first = asyncio.create_task(self._start_first())

    async def _start_first(self) -> None:
        # The first request that needs a process reports the failure.
        with suppress(NotInTimeError):
            # A part of the server's start: at NICENESS its imports take minutes beside a few busy processes.
            process = await self._started(niceness=0)
            process.set_niceness(NICENESS)
            self._pool.take_back(process)

    async def selection(
        self, params: SamplingParams, authors: Collection[str], client: str = "", imposed: Imposed = NOTHING_IMPOSED
    ) -> Selection:
        """Returns the request's validated selection; `authors`: the processors whose own code may run.

        Raises RequestArgsError, UnsendableError, QueueFullError when too many wait for a turn, and NotInTimeError if a
        call does not return in time or is slow while too many others are slow.
        """
        try:
            trial = msgspec.msgpack.encode(Trial(params, imposed))
        except UNSENDABLE as error:
            raise UnsendableError from error
        if self._first is not None:
            await asyncio.wait([self._first])
        async with self._pool.process(client) as (process, lane):
            await process.send(trial)
            result = await self._result(process, lane, ", ".join(sorted(authors)))
        if isinstance(result, Refused):
            raise RequestArgsError(result.path, result.reason)
        return result.selection

    async def close(self) -> None:
        """Ends the processes."""
        if self._first is not None:
            self._first.cancel()
            await asyncio.wait([self._first])
        await self._pool.close()

    async def _result(self, process: FrameProcess, lane: Lane, authors: str) -> Accepted | Refused:
        """Returns the result of a check, a refusal if its process ended; `authors`: named until any code runs."""
        entered: Entering | None = None
        while True:
            try:
                reply = await self._reply_in_time(process, lane, authors if entered is None else entered.processor)
            except EOFError:
                status = await process.status()
                if entered is None:
                    raise NotInTimeError(f"the process that checks requests ended (status {status})") from None
                reason = f"it ended the process in which its arguments were tried (status {status})"
                return Refused(entered.path, f"{entered.processor}: {reason}")
            if isinstance(reply, Accepted | Refused):
                return reply
            entered = reply if isinstance(reply, Entering) else entered

    async def _reply_in_time(self, process: FrameProcess, lane: Lane, processor: str) -> Reply:
        reply = asyncio.ensure_future(_reply(process))
        try:
            quick = QUICK_SECONDS if self._timeout is None else min(QUICK_SECONDS, self._timeout)
            done, _ = await asyncio.wait([reply], timeout=quick)
            if not done and not lane.become_slow(processor):
                reason = "its own code takes long, as it does for other requests; try again later"
                raise NotInTimeError(f"logits processor {processor}: {reason}")
            left = None if self._timeout is None else self._timeout - quick
            if not done and not (await asyncio.wait([reply], timeout=left))[0]:
                raise NotInTimeError(f"logits processor {processor}: its own code took longer than {self._timeout:g} s")
            return reply.result()
        finally:
            if not reply.done():
                reply.cancel()
                with suppress(asyncio.CancelledError, EOFError):
                    await reply

    async def _started(self, niceness: int = NICENESS) -> FrameProcess:
        """Starts a process; raises NotInTimeError if it ends or takes too long before it is ready."""
        process = await FrameProcess.start(MODULE, niceness=niceness)
        try:
            await process.send(msgspec.msgpack.encode(start_of(self._fd_config, self._declared)))
            if isinstance(await asyncio.wait_for(_reply(process), START_SECONDS), Ready):
                return process
        except (EOFError, asyncio.TimeoutError):
            pass
        except BaseException:
            await process.end()
            raise
        await process.end()
        raise NotInTimeError("no process starts that checks requests by the code of logits processors")


def start_of(fd_config: FDConfig, declared: Sequence[DeclaredProcessor]) -> TrialStart:
    """Returns the message with which a process loads a chain."""
    return TrialStart(
        fd_config,
        [each.spec for each in declared],
        [each.name for each in declared if each.mandatory],
        {each.spec: cloudpickle.dumps(each.found) for each in declared if each.given_as_object},
    )


async def _reply(process: FrameProcess) -> Reply:
    """Returns the next message of the process; raises EOFError if it has ended."""
    reply: Reply = msgspec.msgpack.decode(await process.receive(), type=Reply)
    return reply
