"""Which rows of a step are traced."""

from __future__ import annotations

from fastdeploy_lp.model_executor.ops.row_ops import Int64s, RowOps
from fastdeploy_lp.trace_params import TraceParams
from fastdeploy_lp.worker.sequence import Sequence
from fastdeploy_lp.worker.step_trace import StepTrace


class Tracing:
    """Follows requests that are traced through slots; everyone else costs nothing."""

    def __init__(self, ops: RowOps) -> None:
        self._ops = ops
        self._by_slot: dict[int, tuple[Sequence, TraceParams]] = {}

    def enter(self, sequence: Sequence) -> None:
        """A sequence takes a slot."""
        if sequence.params.trace is not None:
            self._by_slot[sequence.slot] = (sequence, sequence.params.trace)

    def leave(self, slot: int) -> None:
        """A slot is empty."""
        self._by_slot.pop(slot, None)

    def begin(self, slots: Int64s) -> StepTrace | None:
        """What follows those of these slots, row r being slot `slots[r]`, whose next token is traced; None for none."""
        if not self._by_slot:
            return None
        rows = {slot: row for row, slot in enumerate(slots.tolist()) if self._traces(slot)}
        return StepTrace(self._ops, rows, {slot: self._by_slot[slot][1].top_k for slot in rows}) if rows else None

    def _traces(self, slot: int) -> bool:
        if slot not in self._by_slot:
            return False
        sequence, trace = self._by_slot[slot]
        return trace.max_tokens is None or len(sequence.output_token_ids) < trace.max_tokens
