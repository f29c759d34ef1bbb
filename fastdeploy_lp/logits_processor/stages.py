"""The stages of a step at which a logits processor runs."""

from __future__ import annotations

from typing import Any, Final, Literal, cast

from fastdeploy_lp.logits_processor.errors import LogitsProcessorSpecError

Stage = Literal["logits", "filtered", "draw"]
LOGITS: Final = "logits"
FILTERED: Final = "filtered"
DRAW: Final = "draw"
STAGES = (LOGITS, FILTERED, DRAW)


def stage_of(cls: Any) -> Stage:
    """Returns the stage of a class or function; LOGITS if it uses the name `stage` for something else than text."""
    stage = getattr(cls, "stage", LOGITS)
    # `require_stage` has refused any other text.
    return cast("Stage", stage) if isinstance(stage, str) else LOGITS


def require_stage(cls: Any, spec: str, *, may_draw: bool) -> None:
    """Raises LogitsProcessorSpecError for an unknown stage, and for one that the dialect does not have.

    may_draw: True for a dialect whose processors may have the stage "draw".
    """
    stage = stage_of(cls)
    if stage not in STAGES:
        raise LogitsProcessorSpecError(spec, f"has the stage {stage!r}; stages are {', '.join(map(repr, STAGES))}")
    if stage == DRAW and not may_draw:
        raise LogitsProcessorSpecError(spec, 'has the stage "draw", which only native processors can have')
