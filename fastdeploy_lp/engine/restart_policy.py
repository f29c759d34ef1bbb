"""Restart policy for workers that ended."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

WINDOW_SECONDS = 60.0
MAX_FAILED_STARTS = 3
FIRST_DELAY, LONGEST_DELAY = 0.25, 8.0


class RestartPolicy:
    """Counts failures; gives up after more than `max_restarts` in a minute, or three failed starts in a row.

    A failure caused by a known processor does not count: the processor's quarantine prevents the next one.
    """

    def __init__(self, max_restarts: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_restarts = max_restarts
        self._clock = clock
        self._failures: deque[float] = deque()
        self._failed_starts = 0

    def delay(self, *, was_ready: bool, explained: bool = False) -> float | None:
        """Returns the seconds to wait before the next start; None to give up.

        was_ready: the failed worker had been ready. explained: a processor ended it.
        """
        if explained:
            return 0.0
        now = self._clock()
        self._failures.append(now)
        while now - self._failures[0] > WINDOW_SECONDS:
            self._failures.popleft()
        self._failed_starts = 0 if was_ready else self._failed_starts + 1
        if len(self._failures) > self._max_restarts or self._failed_starts >= MAX_FAILED_STARTS:
            return None
        # Replace at once after the first failure: most causes do not recur.
        again = len(self._failures) - 2
        return 0.0 if again < 0 else min(FIRST_DELAY * 2**again, LONGEST_DELAY)
