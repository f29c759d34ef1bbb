"""Pooling of prompts' hidden states, chunk by chunk, to one vector or one per token."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle import Tensor

from fastdeploy_lp.request.pooling_params import TOKEN_POOLING

# A hidden state is split into a multiple of 2^-10 and a remainder in multiples of 2^-46. In float64, sums of integers
# below 2^53 are exact in any order: for 2^18 tokens if |hidden state| < 2^25.
COARSE_STEPS = 2.0**10
FINE_STEPS = 2.0**36


class Pooling(Protocol):
    """Takes the chunks of one prompt in order.

    `every_row`: it takes the hidden states of every token; otherwise only of the prompt's last token.
    """

    every_row: ClassVar[bool]

    def take(self, hidden: Tensor) -> None:
        """Takes the hidden states [tokens, hidden_size] of the next tokens."""

    def result(self) -> Tensor:
        """Returns the pooled prompt, float32 [hidden_size] or [tokens, hidden_size]."""


class MeanPooling:
    """Mean over all tokens, rounded once: identical bits for any chunking and on any device."""

    every_row: ClassVar[bool] = True

    def __init__(self) -> None:
        self._count = 0
        self._sums: Tensor | None = None

    def take(self, hidden: Tensor) -> None:
        """See `Pooling.take`."""
        scaled = hidden.astype("float64") * COARSE_STEPS
        coarse = paddle.round(scaled)
        fine = paddle.round((scaled - coarse) * FINE_STEPS)
        sums = paddle.stack([coarse.sum(axis=0), fine.sum(axis=0)])
        self._sums = sums if self._sums is None else self._sums + sums
        self._count += hidden.shape[0]

    def result(self) -> Tensor:
        """See `Pooling.result`; raises RuntimeError before anything was taken."""
        if self._sums is None:
            raise RuntimeError("no hidden state was given to be pooled")
        total = self._sums[0] + self._sums[1] / FINE_STEPS
        return (total / (COARSE_STEPS * self._count)).astype("float32")


class LastPooling:
    """The last token's hidden state."""

    every_row: ClassVar[bool] = False

    def __init__(self) -> None:
        self._last: Tensor | None = None

    def take(self, hidden: Tensor) -> None:
        """See `Pooling.take`."""
        self._last = hidden[-1]

    def result(self) -> Tensor:
        """See `Pooling.result`; raises RuntimeError before anything was taken."""
        if self._last is None:
            raise RuntimeError("no hidden state was given to be pooled")
        return self._last


class TokenPooling:
    """Every token's hidden state, in order."""

    every_row: ClassVar[bool] = True

    def __init__(self) -> None:
        self._chunks: list[Tensor] = []

    def take(self, hidden: Tensor) -> None:
        """See `Pooling.take`."""
        # The next forward pass may overwrite this memory.
        self._chunks.append(hidden.clone())

    def result(self) -> Tensor:
        """See `Pooling.result`, [tokens, hidden_size]; raises RuntimeError before anything was taken."""
        if not self._chunks:
            raise RuntimeError("no hidden state was given to be pooled")
        whole = self._chunks[0] if len(self._chunks) == 1 else paddle.concat(self._chunks)
        return whole.astype("float32")


POOLINGS: dict[str, type[MeanPooling] | type[LastPooling] | type[TokenPooling]] = {
    "mean": MeanPooling,
    "last": LastPooling,
    TOKEN_POOLING: TokenPooling,
}


class PooledSequence(Protocol):
    """A `Sequence`, whose module imports this one."""

    slot: int
    pooling: str | None


class PromptPooling:
    """Pooling state of the prompt in each slot, a `PromptFollower`; generating sequences cost nothing."""

    def __init__(self) -> None:
        self._by_slot: dict[int, Pooling] = {}

    def enter(self, sequence: PooledSequence) -> None:
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

    def wants(self, slot: int) -> bool:
        """See `PromptFollower`."""
        return slot in self._by_slot

    def wants_every_row(self, slot: int) -> bool:
        """See `PromptFollower`."""
        return slot in self._by_slot and self._by_slot[slot].every_row

    def take(self, slot: int, hidden: Tensor) -> None:
        """See `PromptFollower`."""
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
