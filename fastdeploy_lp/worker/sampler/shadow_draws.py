"""Draws from the logits of shadow processors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from paddle import Tensor

from fastdeploy_lp.logits_processor.chain.rows import take_rows
from fastdeploy_lp.logits_processor.chain.shadow import ShadowChain, ShadowRows, ShadowStep
from fastdeploy_lp.messages import ShadowTokens
from fastdeploy_lp.model_executor.ops.row_ops import Draws, Int64s, RowOps
from fastdeploy_lp.worker.sampler.draw_watcher import DrawWatcher, FieldEdits
from fastdeploy_lp.worker.sampler.final_rows import unfiltered


class ShadowDraws(DrawWatcher):
    """Repeats the draw, with the real draw's random numbers, from each processor's copies of its rows.

    final: the slots whose tokens follow from processors after the filters; what another draw would have led to there is
    not known, so that these rows are not compared. After the step's read, `tokens` has by slot the token that each
    shadow processor would have led to.
    """

    def __init__(self, ops: RowOps, chain: ShadowChain, step: ShadowStep, slots: Int64s, final: Int64s) -> None:
        self._ops = ops
        self._chain = chain
        self._slots = slots
        self._final = set(final.tolist())
        self._results = list(step.results)
        self.tokens: dict[int, ShadowTokens] = {}
        self._tell_failed(step)

    def edited(self, logits: Tensor, slots: Int64s, tail: FieldEdits) -> None:  # noqa: ARG002 - own copies
        """Applies penalties and bans to the copies."""
        for result in self._results:
            if result.logits is not None:
                tail.apply(result.logits, result.slots)

    def drawn(self, logits: Tensor, draws: Draws, tokens: Tensor) -> list[Tensor]:  # noqa: ARG002 - own copies
        """Runs the processors after the filters, then draws a token for each row of the copies."""

        def filtered(rows: Int64s) -> Tensor:
            return self._ops.filtered(take_rows(logits, rows), draws.of(rows))

        step = self._chain.apply_final(self._slots, filtered, draws.uniform)
        self._tell_failed(step)
        self._results += step.results
        return [drawn for result in self._results if (drawn := self._draw(result, draws)) is not None]

    def take(self, tokens: Int64s, read: Iterator[NDArray[Any]]) -> None:
        """Counts changed tokens; skips rows from which no token could be sampled."""
        for result in self._results:
            real = tokens[result.rows]
            same = result.logits is None and result.tokens is None
            self._tell(result, real, real if same else next(read).astype(real.dtype))

    def _draw(self, result: ShadowRows, draws: Draws) -> Tensor | None:
        if result.logits is None:
            return result.tokens
        own = draws.of(result.rows)
        if result.filtered:
            own = unfiltered(own, np.arange(len(result.rows)))
        return self._ops.draw(result.logits, own, guard=True)

    def _tell_failed(self, step: ShadowStep) -> None:
        for slot, names in step.failed.items():
            self.tokens.setdefault(slot, {}).update(dict.fromkeys(names))

    def _tell(self, result: ShadowRows, real: Int64s, others: Int64s) -> None:
        compared = np.array([slot not in self._final for slot in result.slots.tolist()])
        for slot, other in zip(result.slots[compared].tolist(), others[compared].tolist(), strict=True):
            self.tokens.setdefault(slot, {})[result.name] = other
        sampled = (real >= 0) & compared
        changed = int((sampled & (real != others)).sum())
        self._chain.count(result.name, tokens=int(sampled.sum()), changed=changed)
