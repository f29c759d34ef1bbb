"""The ordered chain of logits processors, run once a step for the whole batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fastdeploy_lp.logits_processor.base import LogitsProcessor

if TYPE_CHECKING:
    from paddle import Tensor


class LogitsProcessorChain:
    """Runs the declared processors in declaration order."""

    def __init__(self, processors: Sequence[LogitsProcessor]) -> None:
        self.processors = tuple(processors)
        self._changes_argmax = tuple(p for p in self.processors if not p.is_argmax_invariant())

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        """Let every processor read the slots; once before each step that samples."""
        for processor in self.processors:
            processor.update_state(share_inputs)

    def apply(self, logits: Tensor, *, all_greedy: bool) -> Tensor:
        """The logits [rows, vocab_size] after every processor.

        With `all_greedy`, processors that can not change any row's most likely token are left out.
        """
        for processor in self._changes_argmax if all_greedy else self.processors:
            logits = processor.apply(logits)
        return logits
