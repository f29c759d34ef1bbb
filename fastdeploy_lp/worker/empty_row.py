"""Search for the stages that left a row without a token, by running them once more, one by one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray
from paddle import Tensor

from fastdeploy_lp.logits_processor import LogitsProcessorChain, SlotFailure
from fastdeploy_lp.logits_processor.chain.entry import ChainEntry
from fastdeploy_lp.worker.logits_mask import LogitsMask
from fastdeploy_lp.worker.sampler import Sampler
from fastdeploy_lp.worker.sampler.final_rows import FinalRows

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
class RowStages:
    """The stages that a step ran on a slot's row: mask, chain, penalties and bans, and processors after the filters.

    slots: of the step's rows. final: the rows on which processors run after the filters, None without any.
    """

    slot: int
    slots: NDArray[np.int64]
    mask: LogitsMask
    chain: LogitsProcessorChain
    sampler: Sampler
    final: FinalRows | None

    def failure(self, compute: Callable[[], Tensor]) -> SlotFailure:
        """Returns a failure naming the stages that left the row without a token; reruns them.

        compute: returns the model's logits [rows, vocab_size], a new tensor at each call.
        """
        slot, slots, final = self.slot, self.slots, self.final
        ran = self.chain.ran_on(slot)
        edited = [] if final is None else self.chain.final.ran_on(slot)
        masks = [Stage(label, lambda logits: self.mask.apply(logits, slots), True) for label in self.mask.bans_in(slot)]
        bans = self.sampler.bans_in(slot)
        stages = [
            *masks,
            *(self._stage_of(entry) for entry in ran),
            # After the chain, the mask rules out again what a processor brought back.
            *masks,
            Stage(" and ".join(bans), lambda logits: self.sampler.edit(logits, slots), True),
        ]
        if final is not None and edited:
            edits = [Stage(_label(entry), partial(final.edit_again, entry)) for entry in edited]
            stages += [Stage("the filters", final.filter_again, True), *edits]
        # If the failure does not recur, the last processor is the most likely cause.
        likely = _label([*ran, *edited][-1]) if ran or edited else None
        return empty_row_failure(stages, compute, int(np.searchsorted(slots, slot)), likely)

    def _stage_of(self, entry: ChainEntry) -> Stage:
        by_request = entry.declared.source == "builtin" and self.slot in entry.view.using
        return Stage(_label(entry), lambda logits: self.chain.apply_again(entry, self.slot, logits), by_request)


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


def _label(entry: ChainEntry) -> str:
    return f"logits processor {entry.name}"
