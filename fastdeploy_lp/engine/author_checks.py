"""Checks of requests by processors' own code, away from the event loop."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TypeVar

from fastdeploy_lp.engine.trials import Trials
from fastdeploy_lp.logits_processor.author_threads import AuthorCall, AuthorThreads, Outcome
from fastdeploy_lp.logits_processor.checks import Checks

Result = TypeVar("Result")


class AuthorChecks:
    """Runs checks on the event loop, and each call of a processor's own code in a thread or, as a trial, in a process.

    timeout: seconds that one call may take; 0 for no limit.
    """

    def __init__(self, timeout: float, trials: Trials) -> None:
        self._threads = AuthorThreads(timeout)
        self._trials = trials

    async def run(self, checks: Checks[Result]) -> Result:
        """The result of the checks; raises as they do."""
        try:
            call = next(checks)
            while True:
                call = checks.send(await self._outcome(call))
        except StopIteration as end:
            result: Result = end.value
            return result

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
