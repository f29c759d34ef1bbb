"""Prompts that are pooled, followed through slots until their last token."""

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
    """Keeps what has been pooled of the prompt in each slot; a sequence that generates costs nothing."""

    def __init__(self) -> None:
        self._by_slot: dict[int, Pooling] = {}

    def enter(self, sequence: Sequence) -> None:
        """A sequence takes a slot; one that was preempted starts over."""
        if sequence.pooling is not None:
            self._by_slot[sequence.slot] = POOLINGS[sequence.pooling]()

    def leave(self, slot: int) -> None:
        """A slot is empty."""
        self._by_slot.pop(slot, None)

    @property
    def idle(self) -> bool:
        """Whether no slot holds a prompt that is pooled."""
        return not self._by_slot

    def wants_every_row(self, slot: int) -> bool:
        """Whether the hidden states of every token of the slot's next chunk are needed."""
        return slot in self._by_slot and self._by_slot[slot].every_row

    def take(self, slot: int, hidden: Tensor) -> None:
        """Hidden states [tokens, hidden_size] of the slot's next chunk: of every token if wanted, else of its last."""
        self._by_slot[slot].take(hidden)

    def finish(self, slots: Iterable[int]) -> PooledPrompts:
        """What the prompts in these slots, whose last tokens were taken, come to."""
        return PooledPrompts({slot: self._by_slot[slot].result() for slot in slots})


@dataclass(frozen=True)
class PooledPrompts:
    """By slot, what is to go out with this step: float32 [hidden_size] or [tokens, hidden_size] on the device."""

    by_slot: dict[int, Tensor]

    @property
    def tensors(self) -> list[Tensor]:
        """What the step's one read has to bring to the host."""
        return list(self.by_slot.values())

    def unpack(self, arrays: Iterator[NDArray[Any]]) -> dict[int, NDArray[np.float32]]:
        """By slot, the same on the host; takes from `arrays` what was read of `tensors`."""
        return {slot: next(arrays).astype(np.float32) for slot in self.by_slot}
