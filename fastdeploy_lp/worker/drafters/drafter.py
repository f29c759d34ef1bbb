"""Interface of the sources of draft tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from math import inf
from typing import ClassVar, NamedTuple

from fastdeploy_lp.worker.drafters.step_costs import StepCosts
from fastdeploy_lp.worker.sequence import Sequence

NEVER = inf


class Part(NamedTuple):
    """A number of tokens of a draft, which are as likely to be right as drafts of a kind."""

    kind: str
    size: int


class Draft(NamedTuple):
    """Tokens that may follow a sequence. kind: drafts of one kind are about equally likely to be right.

    added: parts that continue the first tokens, in order, of other kinds. A tuple, which takes less time to make.
    """

    tokens: list[int]
    kind: str
    added: tuple[Part, ...] = ()

    @property
    def parts(self) -> tuple[Part, ...]:
        """All parts, in order."""
        if not self.added:
            return (Part(self.kind, len(self.tokens)),)
        return (Part(self.kind, len(self.tokens) - sum(each.size for each in self.added)), *self.added)


class MatchKinds:
    """Kinds of drafts that repeat the text after a match: of one token, of several, or of `longest` tokens.

    one, several, whole: the names. shares: see `Drafter.kinds`.
    """

    def __init__(self, name: str) -> None:
        self.one, self.several, self.whole = f"{name}_one", name, f"{name}_long"
        self.shares = {self.one: 0.25, self.several: 0.5, self.whole: 0.8}

    def of(self, length: int, longest: int) -> str:
        """Returns the kind of a draft after a match of this length, at least 1."""
        return self.whole if length == longest else self.several if length > 1 else self.one


class Drafter(ABC):
    """A source of drafts. Sequences enter and leave slots; one that was preempted enters again with its tokens.

    passes: for drafts that cost time, of one kind: the seconds of a pass that drafts one token for each of a number of
    sequences. Such a drafter is asked for drafts of all sequences together, by `prepare`, and only if they pay off.

    next_step: the first step in which it may have a draft or other work, `NEVER` for none until it sets another one,
    such as when a sequence enters. No earlier step calls it. Drafters with `passes` are called in each step.
    """

    # Expected share of right tokens by kind, before any draft of the kind has been verified.
    kinds: ClassVar[dict[str, float]]
    passes: StepCosts | None = None
    next_step: float = 0

    def enter(self, sequence: Sequence) -> None:  # noqa: B027 - nothing to keep is fine
        """Registers a sequence in its slot."""

    def leave(self, slot: int) -> None:  # noqa: B027
        """Clears a slot."""

    def begin_step(self, step: int, least_share: float) -> bool:  # noqa: ARG002
        """Begins a step; returns False if no sequence can have a draft in it, so that none is asked for.

        Called once before the drafts of a step, also if none are wanted, so that a portion of background work has its
        place here. step: its number, ascending by one. least_share: the probability above which draft tokens pay in
        this step, one of each sequence.
        """
        return True

    def prepare(self, wanted: Iterable[tuple[Sequence, int]]) -> None:  # noqa: B027
        """Computes drafts of at most this many tokens for each sequence, which `draft` returns; only with `passes`."""

    @abstractmethod
    def draft(self, sequence: Sequence, count: int) -> Draft | None:
        """Returns at most `count` tokens that may follow the sequence in a slot; None if there are none."""
