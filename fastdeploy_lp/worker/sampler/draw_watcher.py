"""What looks on while tokens are drawn, and reads its findings together with them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from numpy.typing import NDArray
from paddle import Tensor

from fastdeploy_lp.model_executor.ops.row_ops import Draws, Int64s
from fastdeploy_lp.worker.sampler.row_edits import RowEdits


class DrawWatcher(ABC):
    """Called in this order, once each in a step; may not change what it is shown."""

    @abstractmethod
    def edited(self, logits: Tensor, slots: Int64s, edits: RowEdits) -> None:
        """`edits` have changed logits [rows, vocab_size], row r being slot `slots[r]`."""

    @abstractmethod
    def drawn(self, logits: Tensor, draws: Draws, tokens: Tensor) -> list[Tensor]:
        """`tokens` int64 [rows] were drawn from these logits; gives what the step's one read has to bring along."""

    @abstractmethod
    def take(self, tokens: Int64s, read: Iterator[NDArray[Any]]) -> None:
        """The host's copies of `tokens` and, taken off the front of `read`, of what `drawn` gave."""
