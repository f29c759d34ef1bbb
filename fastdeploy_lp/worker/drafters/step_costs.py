"""Seconds of a step by the number of its tokens, measured on this machine."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable
from math import inf

ROUNDS = 5
# Weight of the last round of verification in the average.
WEIGHT = 0.1
# Seconds of a round beyond the first one, and of drawing drafts at once, as shares of a step of one token, before one
# was measured.
FIRST_ROUND = FIRST_DRAW = 0.1


class StepCosts:
    """Piecewise-linear seconds of a pass with its logits, and the seconds of verification.

    round_seconds: of a round beyond the first one. draw_seconds: of drawing a step's drafts at once, however many.
    """

    def __init__(self, seconds: dict[int, float]) -> None:
        self._tokens: list[int] = []
        self._seconds: list[float] = []
        for tokens in sorted(seconds):
            # A measurement can be disturbed upwards only. More tokens take no less time, and no more than in parts.
            least = min(seconds[more] for more in seconds if more >= tokens)
            self._seconds.append(min(least, self._in_parts(tokens)))
            self._tokens.append(tokens)
        # Looked up several times in each step.
        self._of = [self._between(tokens) for tokens in range(self._tokens[-1] + 1)]
        self.round_seconds = FIRST_ROUND * self._seconds[0]
        self.draw_seconds = FIRST_DRAW * self._seconds[0]

    @classmethod
    def measured(cls, run: Callable[[int], None], most: int) -> StepCosts:
        """Measures `run(tokens)` for powers of 2, one more, and `most` tokens; of several runs the fastest counts.

        Operators compute tiles of several tokens: one token more may need a whole tile more. The runs of one
        number are not one after another: other work on the machine seldom disturbs all of them.
        """
        powers = [1 << bit for bit in range(most.bit_length())]
        sizes = sorted({each for power in powers for each in (power, power + 1) if each < most} | {most})
        for tokens in sizes:
            run(tokens)
        rounds = [[_timed(run, tokens) for tokens in sizes] for _ in range(ROUNDS)]
        return cls(dict(zip(sizes, map(min, zip(*rounds, strict=True)), strict=True)))

    def of(self, tokens: int) -> float:
        """Returns the seconds of a pass with this many tokens."""
        return self._of[tokens] if tokens < len(self._of) else self._between(tokens)

    def _between(self, tokens: int) -> float:
        """Returns the seconds on the line through the nearest measurements."""
        if len(self._tokens) == 1:
            return self._seconds[0]
        place = min(max(bisect_right(self._tokens, tokens), 1), len(self._tokens) - 1)
        (low, high), (begin, end) = self._tokens[place - 1 : place + 1], self._seconds[place - 1 : place + 1]
        return begin + (end - begin) * (tokens - low) / (high - low)

    def round_took(self, seconds: float) -> None:
        """Records a round beyond the first one."""
        self.round_seconds += WEIGHT * (seconds - self.round_seconds)

    def draw_took(self, seconds: float) -> None:
        """Records a draw of drafts; one that was held up counts as a step of one token."""
        self.draw_seconds += WEIGHT * (min(seconds, self._seconds[0]) - self.draw_seconds)

    def _in_parts(self, tokens: int) -> float:
        """Returns the seconds of passes of the most tokens that are known, and one of the rest."""
        if not self._tokens:
            return inf
        count, rest = divmod(tokens, self._tokens[-1])
        return count * self._seconds[-1] + (self._between(rest) if rest else 0.0)


def _timed(run: Callable[[int], None], tokens: int) -> float:
    began = time.perf_counter()
    run(tokens)
    return time.perf_counter() - began
