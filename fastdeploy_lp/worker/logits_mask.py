"""Interface of masks, which rule tokens out before the chain and again after a chain that ran."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from paddle import Tensor

from fastdeploy_lp.worker.sequence import Sequence as WorkerSequence

NOTHING: Mapping[int, str] = {}
NO_TOKENS: Mapping[int, Sequence[int]] = {}


Likely = Callable[[Sequence[int], bytes], Sequence[int]]
"""Takes a draft's tokens, and bytes that must come after them, if any; returns the likeliest tokens there, in order."""


class Lead(NamedTuple):
    """A draft that may continue, with the tokens that are forced after it and with likely ones.

    most: tokens altogether. likely: None to add forced tokens only. Threads call it.
    """

    tokens: Sequence[int]
    most: int
    likely: Likely | None = None


class Run(NamedTuple):
    """Tokens that continue a draft: forced ones, or likely ones that may come there."""

    tokens: list[int]
    forced: bool


class Followed(NamedTuple):
    """The number of a draft's tokens that may come, and the runs that continue them."""

    allowed: int
    runs: list[Run]


class LogitsMask(ABC):
    """Tracks sequences in slots; a step calls `holds`, `begin`, `apply` (once or more), then `accept`.

    only_grammars: sequences without a grammar do not enter. A step without a sequence inside makes none of these calls.
    """

    only_grammars: ClassVar[bool] = False

    @property
    def active(self) -> bool:
        """True if any row of this step may be left without a token."""
        return True

    def warm_up(self) -> None:  # noqa: B027 - nothing to do is fine
        """Does preparation that should precede the first step."""

    def enter(self, sequence: WorkerSequence) -> None:  # noqa: B027
        """Registers a sequence in its slot."""

    def leave(self, slot: int) -> None:  # noqa: B027
        """Clears a slot."""

    def holds(self, slot: int) -> bool:  # noqa: ARG002
        """Returns True while the slot's mask is still being computed, so it cannot have a row in a step."""
        return False

    def needs_each_token(self, slot: int) -> bool:  # noqa: ARG002
        """Returns True if the slot's mask may depend on its tokens."""
        return True

    def begin(self, slots: NDArray[np.int64]) -> None:  # noqa: B027
        """Begins a step of these slots, none of which is held."""

    @abstractmethod
    def apply(self, logits: Tensor, slots: NDArray[np.int64]) -> Tensor:
        """Sets ruled-out tokens of the logits [rows, vocab_size] to -inf, in place; row r is slot `slots[r]`."""

    def apply_to_copies(self, copies: Tensor, rows: NDArray[np.int64]) -> None:  # noqa: B027
        """Does the same to copies [n, vocab_size] of these rows of the step's logits; ascending, int64 [n]."""

    def look_ahead(self, drafts: Mapping[int, Sequence[int]]) -> None:  # noqa: B027
        """Begins to find the masks of drafts by slot, none of which needs each token; the model computes meanwhile."""

    def known_ahead(self) -> Mapping[int, int]:
        """Returns by slot the number of its rows whose masks were found, the next token's row included."""
        return {}

    def apply_ahead(self, logits: Tensor, slots: NDArray[np.int64]) -> None:  # noqa: B027
        """Masks rows of logits [rows, vocab_size] in place: of each slot the rows of `known_ahead`, in order."""

    def accept(  # noqa: B027
        self, slots: NDArray[np.int64], tokens: NDArray[np.int64], further: Mapping[int, Sequence[int]] = NO_TOKENS
    ) -> None:
        """Takes the sampled tokens [rows], -1 where none could be sampled.

        further: by slot, tokens that follow, each after a draft token that was right. `completed` and `failures` are
        then about the slot's last token.
        """

    @property
    def completed(self) -> Collection[int]:
        """Slots whose output is complete with this step's token."""
        return ()

    @property
    def undecided(self) -> Collection[int]:
        """Slots whose output may be complete with this step's token: a later step finds it in `overrun` then."""
        return ()

    @property
    def overrun(self) -> Collection[int]:
        """Slots whose output was found complete after this step began, which do not take its token."""
        return ()

    @property
    def failures(self) -> Mapping[int, str]:
        """By slot, the reason why a request cannot continue after this step."""
        return NOTHING

    def forced(self, slot: int) -> list[int]:  # noqa: ARG002
        """Returns the tokens of the only text that may follow in the slot; none while it is unknown."""
        return []

    def follow(self, drafts: Mapping[int, Lead]) -> Mapping[int, Followed]:  # noqa: ARG002
        """Returns by slot how far the mask goes along with its draft; slots for which this is unknown are missing."""
        return {}

    def allows(self, slot: int, token: int) -> bool:  # noqa: ARG002
        """Returns False if it is known that the slot's next token cannot be this one."""
        return True

    def bans_in(self, slot: int) -> list[str]:  # noqa: ARG002
        """Returns names of the bans that apply to the slot."""
        return []
