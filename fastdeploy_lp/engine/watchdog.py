"""How long a worker that has work has been silent."""

from __future__ import annotations

import time
from collections.abc import Callable


class Watchdog:
    """Every step is a message, and so is the answer to every abort: a worker with work that says nothing hangs."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._waiting_since: float | None = None

    @property
    def silence(self) -> float:
        """Seconds for which the worker has owed a message."""
        return 0.0 if self._waiting_since is None else self._clock() - self._waiting_since

    def sent(self) -> None:
        """The worker was given work."""
        if self._waiting_since is None:
            self._waiting_since = self._clock()

    def heard(self, *, busy: bool) -> None:
        """The worker said something, and has work left if `busy`."""
        self._waiting_since = self._clock() if busy else None
