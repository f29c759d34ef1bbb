"""Estimates of how often draft tokens are right."""

from __future__ import annotations

from dataclasses import dataclass

# Weight of a sequence's older drafts after each new one, and of older drafts of all sequences.
KEEP_OWN, KEEP_ALL = 0.8, 0.995
# Verified tokens with which a sequence's estimate has the same weight as the estimate of all sequences.
PRIOR_TOKENS = 4.0


@dataclass(slots=True)
class Tally:
    """Forgetful counts of verified draft tokens, and of right ones among them."""

    right: float
    verified: float

    def add(self, right: int, verified: int, keep: float) -> None:
        """Counts one draft."""
        self.right = self.right * keep + right
        self.verified = self.verified * keep + verified


class Acceptance:
    """Share of right tokens by kind of draft: of one sequence, or of all, from which new ones start.

    prior: the share by kind before any draft was verified.
    """

    def __init__(self, prior: dict[str, float]) -> None:
        self._all = {kind: Tally(share * PRIOR_TOKENS, PRIOR_TOKENS) for kind, share in prior.items()}
        self._own: dict[tuple[int, str], Tally] = {}

    def leave(self, slot: int) -> None:
        """Forgets a slot's sequence."""
        for kind in self._all:
            self._own.pop((slot, kind), None)

    def share(self, slot: int, kind: str) -> float:
        """Returns the expected share of right tokens of a draft."""
        of_all, own = self._all[kind], self._own.get((slot, kind))
        expected = of_all.right / of_all.verified
        if own is None:
            return expected
        return (own.right + PRIOR_TOKENS * expected) / (own.verified + PRIOR_TOKENS)

    def learn(self, slot: int, kind: str, right: int, verified: int) -> None:
        """Records that `right` of `verified` tokens of a draft were right, all but the last one if not all are."""
        own = self._own.get((slot, kind))
        if own is None:
            own = self._own[slot, kind] = Tally(0.0, 0.0)
        own.add(right, verified, KEEP_OWN)
        self._all[kind].add(right, verified, KEEP_ALL)
