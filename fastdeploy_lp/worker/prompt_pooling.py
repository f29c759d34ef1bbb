"""Pooled prompts, tracked in slots until their last token."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from paddle import Tensor

from fastdeploy_lp.worker.pooling import POOLINGS, Pooling
from fastdeploy_lp.worker.sequence import Sequence


class PromptPooling:
    """Pooling state of the prompt in each slot; generating sequences cost nothing."""

    def __init__(self) -> None:
        self._by_slot: dict[int, Pooling] = {}

    def enter(self, sequence: Sequence) -> None:
        """Registers a sequence in its slot; a preempted one starts over."""
        if sequence.pooling is not None:
            self._by_slot[sequence.slot] = POOLINGS[sequence.pooling]()

    def leave(self, slot: int) -> None:
        """Clears a slot."""
        self._by_slot.pop(slot, None)

    @property
    def idle(self) -> bool:
        """True if no slot holds a pooled prompt."""
        return not self._by_slot

    def wants_every_row(self, slot: int) -> bool:
        """Returns True if the hidden states of every token of the slot's next chunk are needed."""
        return slot in self._by_slot and self._by_slot[slot].every_row

    def take(self, slot: int, hidden: Tensor) -> None:
        """Takes hidden states [tokens, hidden_size] of the slot's chunk: every token's if wanted, else the last."""
        self._by_slot[slot].take(hidden)

    def finish(self, slots: Iterable[int]) -> PooledPrompts:
        """Returns the results of the prompts in these slots, whose last tokens were taken."""
        return PooledPrompts({slot: self._by_slot[slot].result() for slot in slots})


@dataclass(frozen=True)
class PooledPrompts:
    """Pooled results of this step by slot: float32 [hidden_size] or [tokens, hidden_size] on the device."""

    by_slot: dict[int, Tensor]

    @property
    def tensors(self) -> list[Tensor]:
        """Tensors to copy to the host in the step's single read."""
        return list(self.by_slot.values())

    def unpack(self, arrays: Iterator[NDArray[Any]]) -> dict[int, NDArray[np.float32]]:
        """Returns the results on the host by slot; consumes the host copies of `tensors` from `arrays`."""
        return {slot: next(arrays).astype(np.float32) for slot in self.by_slot}
