"""Breaks into a logits processor that does not come back."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType


class ProcessorTimeoutError(Exception):
    """A processor was broken off because it ran far beyond its time budget."""


FIRST_STEPS = 64


class FirstCalls:
    """Seconds beyond its time budget that a processor may take in its first `FIRST_STEPS` steps.

    That is when code is compiled and modules are imported. Instances that are built later share what is left.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds_left = seconds
        self._steps_left = FIRST_STEPS

    @property
    def seconds_left(self) -> float:
        """Seconds of excess that would still be excused."""
        return self._seconds_left if self._steps_left > 0 else 0.0

    def count_step(self) -> None:
        """A step of the processor begins."""
        self._steps_left -= self._steps_left > 0

    def excuse(self, excess: float) -> float:
        """Returns how many of these seconds beyond the budget do not count, and uses them up."""
        excused = min(max(excess, 0.0), self.seconds_left)
        self._seconds_left -= excused
        return excused


class TimeLimit:
    """`with limit:` raises ProcessorTimeoutError in the block after `seconds` of it, and again after as many more.

    For a block may go on with something else behind the error: a processor of single requests with the next one's
    callable. An alarm signal does it, so it reaches Python code (loops, waits) but not a library call that never
    returns, and it works in a process's main thread only; elsewhere, and with 0 seconds, the block just runs.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._armed = False
        self._handler = self._on_alarm

    def with_more(self, seconds: float) -> TimeLimit:
        """A limit that many seconds longer; this very one for 0, or if there is none."""
        return TimeLimit(self._seconds + seconds) if seconds > 0 and self._seconds > 0 else self

    def __enter__(self) -> None:
        # Whichever thread sets the timer, the main thread would hear the alarm.
        if self._seconds <= 0 or threading.get_ident() != threading.main_thread().ident:
            return
        if signal.getsignal(signal.SIGALRM) is not self._handler:
            signal.signal(signal.SIGALRM, self._handler)
        self._armed = True
        signal.setitimer(signal.ITIMER_REAL, self._seconds, self._seconds)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._armed:
            # First: another thread may have taken the alarm, and hand it on only when the timer is off.
            self._armed = False
            signal.setitimer(signal.ITIMER_REAL, 0.0)

    def _on_alarm(self, _: int, frame: FrameType | None) -> None:
        # Raised in one of these methods, the error would leave the timer on.
        if self._armed and not (frame is not None and frame.f_code in _OWN_CODE):
            raise ProcessorTimeoutError("it did not come back in time and was broken off")


_OWN_CODE = frozenset(method.__code__ for method in (TimeLimit.__enter__, TimeLimit.__exit__, TimeLimit._on_alarm))
