"""Log lines of refused requests, at a bounded rate."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable

logger = logging.getLogger("fastdeploy_lp.requests")

# Refusals cost clients nothing, and most need no key: their log lines need a bound.
LINES_PER_SECOND = 20.0
BURST = 200
SUMMARY_SECONDS = 10.0


class RefusalLines:
    """Permits `LINES_PER_SECOND` lines on average, `BURST` at once, and logs the number of omitted lines.

    Belongs to one event loop. clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._free = float(BURST)
        self._seen = clock()
        self._left_out: Counter[int] = Counter()

    def permits(self, status: int) -> bool:
        """Returns True if a request refused with this status may be logged; if not, a later summary counts it."""
        now = self._clock()
        self._free = min(self._free + (now - self._seen) * LINES_PER_SECOND, BURST)
        self._seen = now
        if self._free >= 1:
            self._free -= 1
            return True
        if not self._left_out:
            asyncio.get_running_loop().call_later(SUMMARY_SECONDS, self._summarize)
        self._left_out[status] += 1
        return False

    def _summarize(self) -> None:
        counts = [f"{status}: {count}" for status, count in sorted(self._left_out.items())]
        fields = {"left_out": self._left_out.total(), "by_status": counts}
        self._left_out.clear()
        logger.warning("lines of refused requests were left out", extra={"fields": fields})
