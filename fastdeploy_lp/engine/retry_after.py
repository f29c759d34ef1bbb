"""When a request that was refused should come again."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable

REMEMBERED_ENDS = 64
LONGEST_SECONDS = 60
DEFAULT_SECONDS = 1


class RetryAfter:
    """Gives each refused request a place of its own in the line of those that come again.

    Places become free at the pace at which sequences have ended lately, so that clients that keep to what they are
    told do not come all at once.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ends: deque[float] = deque(maxlen=REMEMBERED_ENDS)
        self._promised = 0.0

    def ended(self) -> None:
        """A sequence has left."""
        self._ends.append(self._clock())

    def seconds(self, places: int) -> int:
        """Whole seconds, 1 to 60, until so many places are likely to be free, behind all that were refused before."""
        now = self._clock()
        if len(self._ends) < 2 or now <= self._ends[0]:
            return DEFAULT_SECONDS
        per_place = (now - self._ends[0]) / len(self._ends)
        self._promised = min(max(self._promised, now) + places * per_place, now + LONGEST_SECONDS)
        return min(max(math.ceil(self._promised - now), 1), LONGEST_SECONDS)
