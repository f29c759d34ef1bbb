"""Retry-After times of refused requests."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable

REMEMBERED_ENDS = 64
LONGEST_SECONDS = 60
DEFAULT_SECONDS = 1


class RetryAfter:
    """Assigns each refused request a separate place in the order of retries.

    Places become free at the recent rate of ended sequences, so that clients that respect Retry-After do not retry all
    at once.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ends: deque[float] = deque(maxlen=REMEMBERED_ENDS)
        self._promised = 0.0

    def ended(self) -> None:
        """Records the end of a sequence."""
        self._ends.append(self._clock())

    def seconds(self, places: int) -> int:
        """Returns whole seconds, 1 to 60, until `places` are probably free, after all earlier refusals."""
        now = self._clock()
        if len(self._ends) < 2 or now <= self._ends[0]:
            return DEFAULT_SECONDS
        per_place = (now - self._ends[0]) / len(self._ends)
        self._promised = min(max(self._promised, now) + places * per_place, now + LONGEST_SECONDS)
        return min(max(math.ceil(self._promised - now), 1), LONGEST_SECONDS)
