"""Checks of requests that leave each call of a processor's own code to their caller."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeVar

from fastdeploy_lp.logits_processor.author_threads import AuthorCall, Outcome
from fastdeploy_lp.logits_processor.declared import DeclaredProcessor

Result = TypeVar("Result")
Checks = Generator[AuthorCall, Outcome, Result]
"""A check that yields each call of a processor's own code, is sent its outcome, and returns its result."""


def run_here(checks: Checks[Result]) -> Result:
    """The result of checks whose calls are all made in this thread."""
    try:
        call = next(checks)
        while True:
            call = checks.send(call.outcome())
    except StopIteration as end:
        result: Result = end.value
        return result


def checked_by(
    processor: DeclaredProcessor, work: Callable[[], Result], trial: dict[str, Any] | None = None
) -> Checks[Result]:
    """The result of a check by the processor; that of a builtin one is ours and runs here. `trial`: of `AuthorCall`."""
    if not processor.checks_with_own_code:
        return work()
    outcome = yield AuthorCall(processor.name, work, trial=trial)
    if isinstance(outcome.error, GeneratorExit):  # not the end of this generator
        raise RuntimeError("GeneratorExit") from outcome.error
    result: Result = outcome.result()
    return result
