"""Checks grammars in other processes before their requests are sent."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import signal
import time
from collections import OrderedDict
from dataclasses import dataclass

import msgspec

from fastdeploy_lp.config import GuidedDecodingConfig, ModelConfig
from fastdeploy_lp.engine.errors import InvalidRequestError, QueueFullError
from fastdeploy_lp.engine.helpers.frame_process import FrameProcess
from fastdeploy_lp.engine.helpers.grammar_process import GrammarProgress, GrammarStart, GrammarTrial
from fastdeploy_lp.engine.helpers.process_pool import Lane, ProcessPool, SlowPlaces
from fastdeploy_lp.engine.helpers.turns import MAX_WAITING, Turns
from fastdeploy_lp.guided_decoding.compiler import too_slow
from fastdeploy_lp.guided_decoding.grammar import Grammar

MODULE = "fastdeploy_lp.engine.helpers.grammar_process"
# Concurrent quick trials and concurrent slow trials.
QUICK_PROCESSES = 2
SLOW_PROCESSES = 2
# A trial with more CPU time gives up its turn.
QUICK_SECONDS = 0.1
# Steps of an engine on the same machine have priority.
NICENESS = 10
SLOW_NICENESS = 19
# Covers starting Python and reading a large vocabulary on a busy machine.
START_SECONDS = 120.0
# The timeout is CPU time; the wall-clock limit is this many times longer, for a busy machine.
BUSY_FACTOR = 12.0


class GrammarProcesses:
    """Compiles grammars, computes their first masks, and returns the reasons of refusals; used from one event loop.

    Two quick trials run at a time, with clients taking turns. A trial that takes more than 0.1 s continues in parallel
    at the lowest priority. At most two do so, and a third is refused: slow grammars never delay quick ones. Processes
    start when they are first needed; a trial that exceeds its time limit ends its process.

    bounds: `timeout` is the CPU time limit of compiling a grammar, in seconds. most: limit of waiting trials.
    """

    def __init__(self, model: ModelConfig, bounds: GuidedDecodingConfig, most: int = MAX_WAITING) -> None:
        self._start = GrammarStart(model.directory, model.vocab_size, tuple(model.eos_token_ids), bounds.max_bytes)
        self._timeout = bounds.timeout
        turns = Turns(QUICK_PROCESSES, "a process that compiles their grammars", most)
        self._slow_places = SlowPlaces(SLOW_PROCESSES, SLOW_PROCESSES)
        self._pool = ProcessPool(self._started, turns, self._slow_places)

    async def refusal(self, text: str, client: str) -> str | None:
        """Returns why the grammar cannot be used, None if it can; raises QueueFullError when too many trials wait.

        A cancelled caller frees its place at once.
        """
        async with self._pool.process(client) as (process, lane):
            return await self._within_bounds(process, text, lane)

    async def close(self) -> None:
        """Ends the idle processes."""
        await self._pool.close()

    async def _within_bounds(self, process: FrameProcess, text: str, lane: Lane) -> str | None:
        trial = asyncio.ensure_future(self._trial(process, text))
        try:
            began, used = time.monotonic(), process.cpu_seconds
            while time.monotonic() - began < self._timeout * BUSY_FACTOR:
                done, _ = await asyncio.wait({trial}, timeout=QUICK_SECONDS)
                if done:
                    return trial.result()
                if process.cpu_seconds - used >= QUICK_SECONDS:
                    self._slow_down(process, lane)
            raise QueueFullError("the server is too busy to compile this request's grammar; try again later")
        finally:
            if not trial.done():
                trial.cancel()
                with contextlib.suppress(asyncio.CancelledError, EOFError):
                    await trial

    def _slow_down(self, process: FrameProcess, lane: Lane) -> None:
        """Gives up the turn for a slow place; raises QueueFullError if none is free."""
        if lane.is_slow:
            return
        if not lane.become_slow():
            others = self._slow_places.num_taken
            raise QueueFullError(
                f"this request's grammar takes long to compile, as do {others} others; try again later"
            )
        process.set_niceness(SLOW_NICENESS)

    async def _trial(self, process: FrameProcess, text: str) -> str | None:
        await process.send(msgspec.msgpack.encode(GrammarTrial(text, self._timeout)))
        too_long = f"takes more than {self._timeout:g} seconds to compile, which the server allows"
        compiled = await _outcome(process, too_long)
        return compiled.refusal if compiled.refusal is not None else (await _outcome(process, too_slow())).refusal

    async def _started(self) -> FrameProcess:
        """Starts a process; raises QueueFullError if that fails."""
        process = await FrameProcess.start(MODULE, niceness=NICENESS, silent=True)
        try:
            await process.send(msgspec.msgpack.encode(self._start))
            await asyncio.wait_for(_progress(process), START_SECONDS)
        except (EOFError, asyncio.TimeoutError):
            await process.end()
            raise QueueFullError("no process to compile this request's grammar starts; try again later") from None
        except BaseException:
            await process.end()
            raise
        return process


async def _progress(process: FrameProcess) -> GrammarProgress:
    return msgspec.msgpack.decode(await process.receive(), type=GrammarProgress)


async def _outcome(process: FrameProcess, too_long: str) -> GrammarProgress:
    """Returns the result of a stage; the refusal is `too_long` if the timer ended the process."""
    try:
        return await _progress(process)
    except EOFError:
        status = await process.status()
        if status == -signal.SIGPROF:
            return GrammarProgress(too_long)
        return GrammarProgress(f"takes more memory than the server allows, or crashes its compiler (status {status})")


@dataclass(eq=False)
class _Check:
    """A running trial and the number of requests waiting for it."""

    trial: asyncio.Task[str | None]
    waiting: int = 0


class GrammarChecker:
    """Refuses grammars that the worker could not compile or follow, with the reason; caches the latest verdicts.

    Requests with the same grammar share one trial, which is cancelled when the last of them leaves.
    """

    def __init__(self, processes: GrammarProcesses, config: GuidedDecodingConfig) -> None:
        self._processes = processes
        self._config = config
        self._checks: dict[bytes, _Check] = {}
        # Includes cancelled trials that are still ending their processes.
        self._trials: set[asyncio.Task[str | None]] = set()
        self._verdicts: OrderedDict[bytes, str | None] = OrderedDict()

    async def check(self, grammar: Grammar, client: str = "") -> None:
        """Raises InvalidRequestError naming the grammar's field if the grammar is too large, too slow, or invalid.

        client: takes turns with other clients. Raises QueueFullError while too many grammars are being tried.
        """
        for text in grammar.texts:
            content = text.encode(errors="surrogatepass")
            if len(content) > self._config.max_bytes:
                reason = f"{len(content)} bytes are too many; the server allows {self._config.max_bytes}"
                raise InvalidRequestError(grammar.field, reason)
            refusal = await self._refusal(hashlib.sha256(content).digest(), text, client)
            if refusal is not None:
                raise InvalidRequestError(grammar.field, refusal)

    async def close(self) -> None:
        """Cancels trials and ends processes."""
        for trial in self._trials:
            trial.cancel()
        await asyncio.gather(*self._trials, return_exceptions=True)
        await self._processes.close()

    async def _refusal(self, name: bytes, text: str, client: str) -> str | None:
        if name in self._verdicts:
            self._verdicts.move_to_end(name)
            return self._verdicts[name]
        check = self._checks.get(name)
        if check is None:
            trial = asyncio.create_task(self._processes.refusal(text, client))
            self._trials.add(trial)
            trial.add_done_callback(lambda ended: self._ended(name, ended))
            check = self._checks[name] = _Check(trial)
        check.waiting += 1
        try:
            return await asyncio.shield(check.trial)
        finally:
            check.waiting -= 1
            if not check.waiting and not check.trial.done():
                # Later requests start a new trial.
                self._checks.pop(name, None)
                check.trial.cancel()

    def _ended(self, name: bytes, trial: asyncio.Task[str | None]) -> None:
        self._trials.discard(trial)
        check = self._checks.get(name)
        if check is not None and check.trial is trial:
            del self._checks[name]
        if trial.cancelled() or trial.exception() is not None:
            return
        self._verdicts[name] = trial.result()
        if len(self._verdicts) > self._config.cache_size:
            self._verdicts.popitem(last=False)
