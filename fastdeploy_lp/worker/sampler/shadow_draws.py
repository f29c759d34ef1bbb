"""Draws from the logits of shadow processors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from numpy.typing import NDArray
from paddle import Tensor

from fastdeploy_lp.logits_processor.chain.shadow import ShadowChain, ShadowRows, ShadowStep
from fastdeploy_lp.messages import ShadowTokens
from fastdeploy_lp.model_executor.ops.row_ops import Draws, Int64s, RowOps
from fastdeploy_lp.worker.sampler.chain_tail import ChainTail
from fastdeploy_lp.worker.sampler.draw_watcher import DrawWatcher


class ShadowDraws(DrawWatcher):
    """Repeats the draw, with the real draw's random numbers, from each processor's copies of its rows.

    After the step's read, `tokens` has by slot the token that each shadow processor would have led to.
    """

    def __init__(self, ops: RowOps, chain: ShadowChain, step: ShadowStep) -> None:
        self._ops = ops
        self._chain = chain
        self._results = step.results
        self.tokens: dict[int, ShadowTokens] = {slot: dict.fromkeys(names) for slot, names in step.failed.items()}

    def edited(self, logits: Tensor, slots: Int64s, tail: ChainTail) -> None:  # noqa: ARG002 - own copies
        """Applies penalties and bans to the copies."""
        for result in self._results:
            if result.logits is not None:
                tail.apply(result.logits, result.slots)

    def drawn(self, logits: Tensor, draws: Draws, tokens: Tensor) -> list[Tensor]:  # noqa: ARG002 - own copies
        """Draws a token for each row of the copies."""
        return [
            self._ops.draw(result.logits, draws.of(result.rows), guard=True)
            for result in self._results
            if result.logits is not None
        ]

    def take(self, tokens: Int64s, read: Iterator[NDArray[Any]]) -> None:
        """Counts changed tokens; skips rows from which no token could be sampled."""
        for result in self._results:
            real = tokens[result.rows]
            others = real if result.logits is None else next(read).astype(real.dtype)
            self._tell(result, real, others)

    def _tell(self, result: ShadowRows, real: Int64s, others: Int64s) -> None:
        for slot, other in zip(result.slots.tolist(), others.tolist(), strict=True):
            self.tokens.setdefault(slot, {})[result.name] = other
        sampled = real >= 0
        changed = int((sampled & (real != others)).sum())
        self._chain.count(result.name, tokens=int(sampled.sum()), changed=changed)
