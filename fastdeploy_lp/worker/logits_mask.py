"""Interface of masks, which rule tokens out before the chain and again after a chain that ran."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping

import numpy as np
from numpy.typing import NDArray
from paddle import Tensor

from fastdeploy_lp.worker.sequence import Sequence

NOTHING: Mapping[int, str] = {}


class LogitsMask(ABC):
    """Tracks sequences in slots; a step calls `holds`, `begin`, `apply` (once or more), then `accept`."""

    @property
    def active(self) -> bool:
        """True if any row of this step may be left without a token."""
        return True

    def warm_up(self) -> None:  # noqa: B027 - nothing to do is fine
        """Does preparation that should precede the first step."""

    def enter(self, sequence: Sequence) -> None:  # noqa: B027
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

    def accept(self, slots: NDArray[np.int64], tokens: NDArray[np.int64]) -> None:  # noqa: B027
        """Takes the sampled tokens [rows], -1 where none could be sampled."""

    @property
    def completed(self) -> Collection[int]:
        """Slots whose output is complete with this step's token."""
        return ()

    @property
    def failures(self) -> Mapping[int, str]:
        """By slot, the reason why a request cannot continue after this step."""
        return NOTHING

    def forced(self, slot: int) -> list[int]:  # noqa: ARG002
        """Returns the tokens of the only text that may follow in the slot; none while it is unknown."""
        return []

    def bans_in(self, slot: int) -> list[str]:  # noqa: ARG002
        """Returns names of the bans that apply to the slot."""
        return []
