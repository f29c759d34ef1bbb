"""Values that a processor's `prepare` finds for a request before the request decodes."""

from __future__ import annotations

import inspect
from typing import Any

import msgspec

from fastdeploy_lp.logits_processor.errors import LogitsProcessorSpecError

PREPARED = "prepared"
"""Argument of a slot with the value."""

FAIL, SKIP, HOLD = LATE = ("fail", "skip", "hold")
"""Ways to go on without a value: the request fails, runs without the processor, or waits as long as it lives."""

MAX_SECONDS = 600.0


class PrepareRequest(msgspec.Struct, frozen=True):
    """The request that `prepare` gets: its arguments for the processor, and its prompt, whose text may be unknown."""

    args: dict[str, Any]
    prompt: str | None
    prompt_token_ids: list[int]


class LateValue(msgspec.Struct, frozen=True):
    """Bounds of a processor's `prepare`: the seconds that it may take, and one of LATE."""

    timeout: float
    late: str


def late_value_of(cls: type, spec: str) -> LateValue:
    """Returns the bounds of a class with its own `prepare`; raises LogitsProcessorSpecError if they are invalid."""
    if not isinstance(inspect.getattr_static(cls, "prepare"), classmethod) or not inspect.iscoroutinefunction(
        cls.prepare  # type: ignore[attr-defined]
    ):
        reason = "its prepare must be an async class method: @classmethod, then async def prepare(cls, request)"
        raise LogitsProcessorSpecError(spec, reason)
    params = getattr(cls, "Params", None)
    if params is not None and PREPARED in params.model_fields:
        raise LogitsProcessorSpecError(spec, f"its Params must have no {PREPARED!r}: this is the value of its prepare")
    timeout, late = cls.prepare_timeout, cls.prepare_late  # type: ignore[attr-defined]
    number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    if not number or not 0 < timeout <= MAX_SECONDS:
        reason = f"its prepare_timeout must be more than 0 and at most {MAX_SECONDS:g} seconds, not {timeout!r}"
        raise LogitsProcessorSpecError(spec, reason)
    if late not in LATE:
        raise LogitsProcessorSpecError(spec, f"its prepare_late must be one of {', '.join(LATE)}, not {late!r}")
    return LateValue(float(timeout), late)
