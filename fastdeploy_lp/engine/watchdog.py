"""Measures the silence of a worker that has work."""

from __future__ import annotations

import time
from collections.abc import Callable


class Watchdog:
    """Detects hangs: each step and each abort causes a message, so a silent worker with work hangs."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._waiting_since: float | None = None

    @property
    def silence(self) -> float:
        """Seconds since the worker should have sent a message; 0 without work."""
        return 0.0 if self._waiting_since is None else self._clock() - self._waiting_since

    def sent(self) -> None:
        """Notes a message with work for the worker."""
        if self._waiting_since is None:
            self._waiting_since = self._clock()

    def heard(self, *, busy: bool) -> None:
        """Notes a message from the worker; `busy`: it has work left."""
        self._waiting_since = self._clock() if busy else None
