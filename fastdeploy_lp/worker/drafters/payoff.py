"""Compares the time that looks for drafts take with the time that drafts save."""

from __future__ import annotations

# Weight of the last look in the averages.
WEIGHT = 0.05
MOST_REST = 8


class Payoff:
    """Compares the seconds that looks for drafts take with the seconds that their drafts are expected to save.

    While looks take more, steps without a look come between them: more each time, at most `MOST_REST`. In a full batch
    all sequences have to be looked at, and a draft token saves little. seconds: of a step, which is what looks are
    expected to save at first.
    """

    def __init__(self, seconds: float) -> None:
        self._taken, self._saved = 0.0, seconds
        self._rest = self._left = 0

    def rests(self) -> bool:
        """Returns True for a step without a look; called once a step."""
        if self._left == 0:
            return False
        self._left -= 1
        return True

    def looked(self, seconds: float, saved: float) -> None:
        """Records a look that took `seconds`, and the seconds that its drafts are expected to save."""
        self._taken += WEIGHT * (seconds - self._taken)
        self._saved += WEIGHT * (saved - self._saved)
        self._rest = 0 if self._saved >= self._taken else min(2 * self._rest + 1, MOST_REST)
        self._left = self._rest
