"""Interface of observers of a step's draw, whose results are read together with the tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Protocol

from numpy.typing import NDArray
from paddle import Tensor

from fastdeploy_lp.model_executor.ops.row_ops import Draws, Int64s


class FieldEdits(Protocol):
    """Edits of single logits by requests' own fields; `ChainTail` makes them."""

    def works_on(self, slot: int) -> bool:
        """Returns True if the slot's request has such fields."""

    def apply(self, logits: Tensor, slots: Int64s) -> None:
        """Edits logits [rows, vocab_size] in place; row r is slot `slots[r]`, ascending. Repeatable in a step."""


class DrawWatcher(ABC):
    """Methods are called in this order, once each per step; they must not change their arguments."""

    @abstractmethod
    def edited(self, logits: Tensor, slots: Int64s, tail: FieldEdits) -> None:
        """Observes logits [rows, vocab_size] that `tail` has changed; row r is slot `slots[r]`."""

    @abstractmethod
    def drawn(self, logits: Tensor, draws: Draws, tokens: Tensor) -> list[Tensor]:
        """Observes `tokens` int64 [rows] drawn from these logits; returns tensors to add to the step's single read."""

    @abstractmethod
    def take(self, tokens: Int64s, read: Iterator[NDArray[Any]]) -> None:
        """Takes the host copies of `tokens` and, from the front of `read`, of the tensors that `drawn` returned."""
