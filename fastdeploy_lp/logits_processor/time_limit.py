"""Breaks into a logits processor that does not come back."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType


class ProcessorTimeoutError(Exception):
    """A processor was broken off because it ran far beyond its time budget."""


class TimeLimit:
    """`with limit:` raises ProcessorTimeoutError in the block after `seconds` of it.

    An alarm signal does it, so it reaches Python code (loops, waits) but not a library call that never returns, and it
    works in a process's main thread only; elsewhere the block just runs.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._armed = threading.current_thread() is threading.main_thread() and seconds > 0
        if self._armed:
            signal.signal(signal.SIGALRM, _raise_timeout)

    def __enter__(self) -> None:
        if self._armed:
            signal.setitimer(signal.ITIMER_REAL, self._seconds)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._armed:
            signal.setitimer(signal.ITIMER_REAL, 0.0)


def _raise_timeout(_: int, __: FrameType | None) -> None:
    raise ProcessorTimeoutError("it did not come back in time and was broken off")
