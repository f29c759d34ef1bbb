"""Search for the stages that left a row without a token, by running them once more, one by one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from paddle import Tensor

from fastdeploy_lp.logits_processor import SlotFailure

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Stage:
    """One stage of a step: `apply` changes the step's logits [rows, vocab_size], in place or not.

    label: its name in an error. by_request: the request itself chose its effect; it is no third-party code.
    """

    label: str
    apply: Callable[[Tensor], Tensor]
    by_request: bool = False


MODEL = Stage("the model", lambda logits: logits)


@dataclass(frozen=True)
class _Row:
    """A row after a stage: its usable tokens, and True if it holds NaN or +inf."""

    usable: NDArray[np.bool_]
    spoilt: bool

    @classmethod
    def of(cls, logits: Tensor, row: int) -> _Row:
        values = logits[row].numpy()
        return cls(np.isfinite(values), bool(np.isnan(values).any() or np.isposinf(values).any()))

    @property
    def can_be_sampled(self) -> bool:
        return not self.spoilt and bool(self.usable.any())


def empty_row_failure(stages: Sequence[Stage], raw: Callable[[], Tensor], row: int, likely: str | None) -> SlotFailure:
    """Returns a failure naming the stages that left `row` without a token, as `stages_to_blame` finds them.

    likely: the label to name if the failure does not recur; None for the model's.
    """
    try:
        blamed = stages_to_blame(stages, raw, row)
    except Exception as error:
        logger.warning("the stages of a row without a token cannot be run again", exc_info=error)
        blamed = []
    labels = [stage.label for stage in blamed] or [likely or MODEL.label]
    message = f"{' and '.join(dict.fromkeys(labels))} left no token that can be sampled"
    return SlotFailure(message, by_request=bool(blamed) and all(stage.by_request for stage in blamed))


def stages_to_blame(stages: Sequence[Stage], raw: Callable[[], Tensor], row: int) -> list[Stage]:
    """Returns the stages, in order, that together left `row` without a token; empty if the failure does not recur.

    raw: computes the step's logits [rows, vocab_size] before the first stage. A stage that writes NaN or +inf, or that
    removes every token by itself, is the only cause; otherwise it shares the blame with earlier stages that removed a
    token it would have kept.
    """
    logits = raw()
    before = _Row.of(logits, row)
    if not before.can_be_sampled:
        return [MODEL]
    removed: list[tuple[Stage, NDArray[np.bool_]]] = []
    for stage in stages:
        logits = stage.apply(logits)
        after = _Row.of(logits, row)
        if after.spoilt:
            return [stage]
        if not after.can_be_sampled:
            alone = _Row.of(stage.apply(raw()), row).usable
            sharing = [other for other, tokens in removed if (tokens & alone).any()]
            return [*dict.fromkeys(sharing), stage]
        removed.append((stage, before.usable & ~after.usable))
        before = after
    return []
