"""Bodies of requests that were answered before they were read, at a pace that leaves time for others."""

from __future__ import annotations

import time

BYTES_PER_SECOND = 16 * 1024 * 1024


class UnreadBodies:
    """Spreads reading what nobody needs over time, for all connections together.

    A connection that is closed while its client still sends is reset, and the client may not see its answer.
    """

    def __init__(self, bytes_per_second: float = BYTES_PER_SECOND) -> None:
        self._seconds_per_byte = 1 / bytes_per_second
        self._free_at = 0.0

    def pause_after(self, count: int) -> float:
        """Seconds for which the connection that has brought so many bytes is to read no more."""
        now = time.monotonic()
        self._free_at = max(self._free_at, now) + count * self._seconds_per_byte
        return self._free_at - now
