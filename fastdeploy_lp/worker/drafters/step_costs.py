"""Seconds of a step by the number of its tokens, measured on this machine."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable

ROUNDS = 3
# Weight of the last round of verification in the average.
WEIGHT = 0.1
# Seconds of a round beyond the first one, as a share of a step of one token, before one was measured.
FIRST_ROUND = 0.1


class StepCosts:
    """Piecewise-linear seconds of a pass with its logits, and of a round of verification."""

    def __init__(self, seconds: dict[int, float]) -> None:
        self._tokens = sorted(seconds)
        # A measurement can be disturbed upwards only.
        self._seconds = [min(seconds[more] for more in self._tokens[place:]) for place in range(len(self._tokens))]
        self.round_seconds = FIRST_ROUND * self._seconds[0]

    @classmethod
    def measured(cls, run: Callable[[int], None], most: int) -> StepCosts:
        """Measures `run(tokens)` for 1, 2, 4, … tokens, up to at least `most`; of several runs the fastest counts."""
        seconds: dict[int, float] = {}
        tokens = 1
        while not seconds or max(seconds) < most:
            tokens = min(tokens, most)
            run(tokens)
            seconds[tokens] = min(_timed(run, tokens) for _ in range(ROUNDS))
            tokens *= 2
        return cls(seconds)

    def of(self, tokens: int) -> float:
        """Returns the seconds of a pass with this many tokens."""
        if len(self._tokens) == 1:
            return self._seconds[0]
        place = min(max(bisect_right(self._tokens, tokens), 1), len(self._tokens) - 1)
        (low, high), (begin, end) = self._tokens[place - 1 : place + 1], self._seconds[place - 1 : place + 1]
        return begin + (end - begin) * (tokens - low) / (high - low)

    def round_took(self, seconds: float) -> None:
        """Records a round beyond the first one."""
        self.round_seconds += WEIGHT * (seconds - self.round_seconds)


def _timed(run: Callable[[int], None], tokens: int) -> float:
    began = time.perf_counter()
    run(tokens)
    return time.perf_counter() - began
