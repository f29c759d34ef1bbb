"""Interface of observers of a step's draw, whose results are read together with the tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from numpy.typing import NDArray
from paddle import Tensor

from fastdeploy_lp.model_executor.ops.row_ops import Draws, Int64s
from fastdeploy_lp.worker.sampler.chain_tail import ChainTail


class DrawWatcher(ABC):
    """Methods are called in this order, once each per step; they must not change their arguments."""

    @abstractmethod
    def edited(self, logits: Tensor, slots: Int64s, tail: ChainTail) -> None:
        """Observes logits [rows, vocab_size] that `tail` has changed; row r is slot `slots[r]`."""

    @abstractmethod
    def drawn(self, logits: Tensor, draws: Draws, tokens: Tensor) -> list[Tensor]:
        """Observes `tokens` int64 [rows] drawn from these logits; returns tensors to add to the step's single read."""

    @abstractmethod
    def take(self, tokens: Int64s, read: Iterator[NDArray[Any]]) -> None:
        """Takes the host copies of `tokens` and, from the front of `read`, of the tensors that `drawn` returned."""
