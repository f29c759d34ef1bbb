"""Interfaces of what follows sequences through slots, and the rows of hidden states that prompts' followers read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import paddle
from paddle import Tensor

from fastdeploy_lp.model_executor.forward_batch import SequenceChunk
from fastdeploy_lp.platforms import to_device
from fastdeploy_lp.worker.sequence import ScheduledChunk
from fastdeploy_lp.worker.sequence import Sequence as WorkerSequence


class SlotFollower(Protocol):
    """State by slot. A sequence enters before its first chunk, and again after a preemption or a rewind.

    For a rewind it leaves its slot, and enters it at once with fewer output tokens.
    """

    def enter(self, sequence: WorkerSequence) -> None:
        """Registers a sequence in `sequence.slot`."""

    def leave(self, slot: int) -> None:
        """Clears a slot; does nothing for a slot without state."""


class SamplingFollower(SlotFollower, Protocol):
    """A follower that takes part in sampling."""

    def needs_each_token(self, slot: int) -> bool:
        """Returns True if it must see each of the slot's tokens before it can take part in the next one."""


class PromptFollower(SlotFollower, Protocol):
    """A follower that reads hidden states of prompts."""

    @property
    def idle(self) -> bool:
        """True if no slot has state."""

    def wants(self, slot: int) -> bool:
        """Returns True if the hidden states that the model returns for the slot's next chunk must be passed."""

    def wants_every_row(self, slot: int) -> bool:
        """Returns True if the hidden states of every token of the slot's next chunk are needed."""

    def take(self, slot: int, hidden: Tensor) -> None:
        """Takes hidden states [tokens, hidden_size] of the slot's chunk: every token's if wanted, else the last."""


def split_hidden(
    hidden: Tensor, chunks: Sequence[ScheduledChunk], parts: Sequence[SequenceChunk], readers: Sequence[PromptFollower]
) -> Tensor:
    """Passes rows of `hidden` to their readers; returns the hidden states [rows, hidden_size] to sample from."""
    ends = np.cumsum([part.num_outputs for part in parts])
    for chunk, part, end in zip(chunks, parts, ends.tolist(), strict=True):
        slot = chunk.sequence.slot
        for reader in readers:
            if part.num_outputs and reader.wants(slot):
                reader.take(slot, hidden[end - part.num_outputs : end])
    sampling = [
        np.arange(end - 1 - len(chunk.draft), end) for chunk, end in zip(chunks, ends, strict=True) if chunk.samples
    ]
    if not sampling or sum(map(len, sampling)) == len(hidden):
        return hidden
    return paddle.gather(hidden, to_device(np.concatenate(sampling)))
