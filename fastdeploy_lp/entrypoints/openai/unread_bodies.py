"""Rate limit on reading bodies of requests that are already answered."""

from __future__ import annotations

import time

BYTES_PER_SECOND = 16 * 1024 * 1024


class UnreadBodies:
    """Spreads the reading of unneeded bodies over time, for all connections together.

    They are read because closing a connection while its client still sends resets it, and may lose the answer.
    """

    def __init__(self, bytes_per_second: float = BYTES_PER_SECOND) -> None:
        self._seconds_per_byte = 1 / bytes_per_second
        self._free_at = 0.0

    def pause_after(self, count: int) -> float:
        """Returns the seconds for which a connection must pause reading after `count` bytes."""
        now = time.monotonic()
        self._free_at = max(self._free_at, now) + count * self._seconds_per_byte
        return self._free_at - now
