"""Interface of the sources of draft tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from fastdeploy_lp.worker.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Draft:
    """Tokens that may follow a sequence. kind: drafts of one kind are about equally likely to be right."""

    tokens: list[int]
    kind: str


class Drafter(ABC):
    """A source of drafts. Sequences enter and leave slots; one that was preempted enters again with its tokens."""

    # Expected share of right tokens by kind, before any draft of the kind has been verified.
    kinds: ClassVar[dict[str, float]]

    def enter(self, sequence: Sequence) -> None:  # noqa: B027 - nothing to keep is fine
        """Registers a sequence in its slot."""

    def leave(self, slot: int) -> None:  # noqa: B027
        """Clears a slot."""

    @abstractmethod
    def draft(self, sequence: Sequence, count: int) -> Draft | None:
        """Returns at most `count` tokens that may follow the sequence in a slot; None if there are none."""
