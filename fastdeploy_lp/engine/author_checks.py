"""Checks of requests by processors' own code, away from the event loop."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from fastdeploy_lp.engine.host_threads import Run, run_here
from fastdeploy_lp.engine.trials import Trials
from fastdeploy_lp.logits_processor.author_threads import AuthorCall, AuthorThreads, Outcome
from fastdeploy_lp.logits_processor.checks import Checks

Result = TypeVar("Result")


@dataclass(frozen=True)
class _Ended(Generic[Result]):
    """The end of checks. An exception with the result, as generators have it, could not leave a thread."""

    result: Result


class AuthorChecks:
    """Runs checks on the event loop, or where it is told, and calls of processors' own code in threads and processes.

    Trials have processes, other calls threads. timeout: seconds that one call may take; 0 for no limit.
    """

    def __init__(self, timeout: float, trials: Trials) -> None:
        self._threads = AuthorThreads(timeout)
        self._trials = trials

    async def run(self, checks: Checks[Result], inside: Run = run_here) -> Result:
        """The result of the checks, whose own steps `inside` runs; raises as they do."""
        outcome: Outcome | None = None
        while True:
            step = await inside(partial(_advance, checks, outcome))
            if isinstance(step, _Ended):
                return step.result
            outcome = await self._outcome(step)

    async def _outcome(self, call: AuthorCall) -> Outcome:
        if call.trial is not None:
            return await self._trials.outcome(call.processor, call.trial)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Outcome] = loop.create_future()

        def settle(outcome: Outcome) -> None:
            if not future.done():
                future.set_result(outcome)

        def done(outcome: Outcome) -> None:
            # The loop may have been closed meanwhile; then nothing waits for the outcome.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(settle, outcome)

        pending = self._threads.submit(call, done)
        try:
            return await future
        finally:
            # The caller may have left before the call began.
            pending.cancel()


def _advance(checks: Checks[Result], outcome: Outcome | None) -> AuthorCall | _Ended[Result]:
    try:
        return next(checks) if outcome is None else checks.send(outcome)
    except StopIteration as end:
        return _Ended(end.value)
