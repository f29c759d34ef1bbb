"""Selection of the rows of a step to trace."""

from __future__ import annotations

from fastdeploy_lp.model_executor.ops.row_ops import Int64s, RowOps
from fastdeploy_lp.trace_params import TraceParams
from fastdeploy_lp.worker.sequence import Sequence
from fastdeploy_lp.worker.step_trace import StepTrace


class Tracing:
    """Tracks traced requests in slots; other requests cost nothing."""

    def __init__(self, ops: RowOps) -> None:
        self._ops = ops
        self._by_slot: dict[int, tuple[Sequence, TraceParams]] = {}

    def enter(self, sequence: Sequence) -> None:
        """Registers a sequence if it is traced."""
        if sequence.params.trace is not None:
            self._by_slot[sequence.slot] = (sequence, sequence.params.trace)

    def leave(self, slot: int) -> None:
        """Clears a slot."""
        self._by_slot.pop(slot, None)

    def begin(self, slots: Int64s) -> StepTrace | None:
        """Returns a trace of the slots whose next token is traced, or None; row r is slot `slots[r]`."""
        if not self._by_slot:
            return None
        rows = {slot: row for row, slot in enumerate(slots.tolist()) if self._traces(slot)}
        return StepTrace(self._ops, rows, {slot: self._by_slot[slot][1].top_k for slot in rows}) if rows else None

    def _traces(self, slot: int) -> bool:
        if slot not in self._by_slot:
            return False
        sequence, trace = self._by_slot[slot]
        return trace.max_tokens is None or len(sequence.output_token_ids) < trace.max_tokens
