"""Followers of the slots: the parts of a step that keep state for the sequence in a slot."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import paddle
from paddle import Tensor

from fastdeploy_lp.logits_processor import LogitsProcessorChain
from fastdeploy_lp.logits_processor.share_inputs import ShareInputs
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


class SlotFollowers:
    """The followers of the sequence in each slot; only those that have entered with it are called for it.

    They are called in the order in which they are listed.
    """

    def __init__(self) -> None:
        self._by_slot: dict[int, list[SlotFollower]] = {}
        self._sampling: dict[int, list[SamplingFollower]] = {}
        # By a follower's id, since a mask may have no hash: the slots whose sequences it follows.
        self._slots: defaultdict[int, set[int]] = defaultdict(set)

    def enter(self, sequence: WorkerSequence, always: list[SlotFollower], sampling: list[SamplingFollower]) -> None:
        """Registers a sequence in its slot with these followers, of which `sampling` take part in sampling."""
        slot = sequence.slot
        self._by_slot[slot], self._sampling[slot] = [*always, *sampling], sampling
        for follower in self._by_slot[slot]:
            self._slots[id(follower)].add(slot)
            follower.enter(sequence)

    def leave(self, slot: int) -> None:
        """Clears a slot; does nothing for a slot without a sequence."""
        self._sampling.pop(slot, None)
        for follower in self._by_slot.pop(slot, ()):
            self._slots[id(follower)].discard(slot)
            follower.leave(slot)

    def needs_each_token(self, slot: int) -> bool:
        """See `SamplingFollower`."""
        return any(follower.needs_each_token(slot) for follower in self._sampling.get(slot, ()))

    def follows(self, follower: SlotFollower, slot: int) -> bool:
        """Returns True if the follower follows the sequence in the slot."""
        return slot in self._slots[id(follower)]

    def follows_any(self, follower: SlotFollower) -> bool:
        """Returns True if the follower follows a sequence in any slot."""
        return bool(self._slots[id(follower)])


@dataclass(frozen=True)
class SlotArrays:
    """`share_inputs` as a follower."""

    share_inputs: ShareInputs

    def enter(self, sequence: WorkerSequence) -> None:
        """See `SlotFollower`."""
        self.share_inputs.assign(sequence)

    def leave(self, slot: int) -> None:
        """See `SlotFollower`."""
        self.share_inputs.clear(slot)


@dataclass(frozen=True)
class ChainSlots:
    """The chain, shadows included, as a follower."""

    chain: LogitsProcessorChain

    def enter(self, sequence: WorkerSequence) -> None:
        """See `SlotFollower`."""
        self.chain.enter(
            sequence.slot,
            sequence.selection,
            again=sequence.was_preempted or sequence.num_rewinds > 0,
            client=sequence.client,
            totals=sequence.totals,
        )
        sequence.max_rewind = self.chain.max_rewind(sequence.slot)

    def leave(self, slot: int) -> None:
        """See `SlotFollower`."""
        self.chain.leave(slot)

    def needs_each_token(self, slot: int) -> bool:
        """See `SamplingFollower`."""
        return self.chain.works_on(slot)


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
