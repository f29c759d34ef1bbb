"""Seconds of a step by the number of its tokens, measured on this machine."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable

ROUNDS = 5
# Weight of the last round of verification in the average.
WEIGHT = 0.1
# Seconds of a round beyond the first one, as a share of a step of one token, before one was measured.
FIRST_ROUND = 0.1


class StepCosts:
    """Piecewise-linear seconds of a pass with its logits, and of a round of verification."""

    def __init__(self, seconds: dict[int, float]) -> None:
        self._tokens = sorted(seconds)
        # A measurement can be disturbed upwards only. More tokens take no less time, and at most in proportion.
        self._seconds = [min(seconds[more] for more in self._tokens[place:]) for place in range(len(self._tokens))]
        for place in range(1, len(self._tokens)):
            in_proportion = self._seconds[place - 1] * self._tokens[place] / self._tokens[place - 1]
            self._seconds[place] = min(self._seconds[place], in_proportion)
        self.round_seconds = FIRST_ROUND * self._seconds[0]

    @classmethod
    def measured(cls, run: Callable[[int], None], most: int) -> StepCosts:
        """Measures `run(tokens)` for 1, 2, 4, … `most` tokens; of several runs the fastest counts.

        The runs of one number are not one after another: other work on the machine seldom disturbs all of them.
        """
        sizes = [*(1 << bit for bit in range((most - 1).bit_length())), most]
        for tokens in sizes:
            run(tokens)
        rounds = [[_timed(run, tokens) for tokens in sizes] for _ in range(ROUNDS)]
        return cls(dict(zip(sizes, map(min, zip(*rounds, strict=True)), strict=True)))

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
