"""When a worker that ended gets a successor."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

WINDOW_SECONDS = 60.0
MAX_FAILED_STARTS = 3
FIRST_DELAY, LONGEST_DELAY = 0.25, 8.0


class RestartPolicy:
    """Counts failures: more than `max_restarts` within a minute, or three starts in a row that failed, are the end.

    A failure for which a processor is known counts for neither: its quarantine prevents the next one.
    """

    def __init__(self, max_restarts: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_restarts = max_restarts
        self._clock = clock
        self._failures: deque[float] = deque()
        self._failed_starts = 0

    def delay(self, *, was_ready: bool, explained: bool = False) -> float | None:
        """Seconds to wait after a worker has failed, `was_ready` or not; None when there is to be no other one.

        explained: a processor ended it.
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
        # The first one is replaced at once: most of what ends a worker does not end the next one.
        again = len(self._failures) - 2
        return 0.0 if again < 0 else min(FIRST_DELAY * 2**again, LONGEST_DELAY)
