"""Followers of the slots: the parts of a step that keep state for the sequence in each slot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from paddle import Tensor

from fastdeploy_lp.logits_processor import LogitsProcessorChain
from fastdeploy_lp.logits_processor.share_inputs import ShareInputs
from fastdeploy_lp.worker.sequence import Sequence


class SlotFollower(Protocol):
    """State by slot. A sequence enters before its first chunk, and again after a preemption or a rewind.

    For a rewind it leaves its slot, and enters it at once with fewer output tokens.
    """

    def enter(self, sequence: Sequence) -> None:
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


@dataclass(frozen=True)
class SlotFollowers:
    """Followers, notified in this order; itself a follower.

    every: follow all sequences. sampling: follow sequences that generate tokens, which pooled prompts do not.
    """

    every: tuple[SlotFollower, ...]
    sampling: tuple[SamplingFollower, ...]

    def enter(self, sequence: Sequence) -> None:
        """See `SlotFollower`."""
        for follower in self.every:
            follower.enter(sequence)
        if sequence.pooling is None:
            for follower in self.sampling:
                follower.enter(sequence)

    def needs_each_token(self, slot: int) -> bool:
        """See `SamplingFollower`."""
        return any(follower.needs_each_token(slot) for follower in self.sampling)

    def leave(self, slot: int) -> None:
        """See `SlotFollower`."""
        for follower in (*self.every, *self.sampling):
            follower.leave(slot)


@dataclass(frozen=True)
class SlotArrays:
    """`share_inputs` as a follower."""

    share_inputs: ShareInputs

    def enter(self, sequence: Sequence) -> None:
        """See `SlotFollower`."""
        self.share_inputs.assign(sequence)

    def leave(self, slot: int) -> None:
        """See `SlotFollower`."""
        self.share_inputs.clear(slot)


@dataclass(frozen=True)
class ChainSlots:
    """The chain, shadows included, as a follower."""

    chain: LogitsProcessorChain

    def enter(self, sequence: Sequence) -> None:
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
