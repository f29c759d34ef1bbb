"""What may rule tokens out before the chain runs, and does so again behind one that ran."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping

import numpy as np
from numpy.typing import NDArray
from paddle import Tensor

from fastdeploy_lp.worker.sequence import Sequence

NOTHING: Mapping[int, str] = {}


class LogitsMask(ABC):
    """Follows sequences through slots; in a step `holds` comes first, `begin`, `apply`, once or more, then `accept`."""

    @property
    def active(self) -> bool:
        """Whether any row of this step may be left without a token."""
        return True

    def warm_up(self) -> None:  # noqa: B027 - nothing to do is fine
        """Whatever is better done before the first step."""

    def enter(self, sequence: Sequence) -> None:  # noqa: B027
        """A sequence takes its slot."""

    def leave(self, slot: int) -> None:  # noqa: B027
        """A slot is empty again."""

    def holds(self, slot: int) -> bool:  # noqa: ARG002
        """True while the slot cannot have a row in a step, as its mask is still being computed."""
        return False

    def begin(self, slots: NDArray[np.int64]) -> None:  # noqa: B027
        """A step of these slots begins, none of which is held."""

    @abstractmethod
    def apply(self, logits: Tensor, slots: NDArray[np.int64]) -> Tensor:
        """The logits [rows, vocab_size] with ruled-out tokens at -inf, in place; row r is slot `slots[r]`."""

    def apply_to_copies(self, copies: Tensor, rows: NDArray[np.int64]) -> None:  # noqa: B027
        """The same, in place, for copies [n, vocab_size] of these rows of the step's logits; ascending, int64 [n]."""

    def accept(self, slots: NDArray[np.int64], tokens: NDArray[np.int64]) -> None:  # noqa: B027
        """What was sampled [rows], -1 where nothing could be."""

    @property
    def completed(self) -> Collection[int]:
        """The slots whose output is whole with this step's token."""
        return ()

    @property
    def failures(self) -> Mapping[int, str]:
        """By slot, why a request can not go on after this step."""
        return NOTHING

    def bans_in(self, slot: int) -> list[str]:  # noqa: ARG002
        """What rules tokens out there, in words."""
        return []
