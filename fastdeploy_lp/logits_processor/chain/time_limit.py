"""Interruption of a logits processor that does not return."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType


class ProcessorTimeoutError(Exception):
    """A processor was interrupted because it ran far beyond its time budget."""


class TimeLimit:
    """`with limit:` raises ProcessorTimeoutError in the block after every `seconds`.

    It repeats, since the block may catch the error and continue with another request's callable. It uses an alarm
    signal, which interrupts Python code (loops, waits) but not a library call that never returns, and which works only
    in a process's main thread; in other threads, and with 0 seconds, the block runs without a limit.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._armed = False
        self._handler = self._on_alarm

    def with_more(self, seconds: float) -> TimeLimit:
        """Returns a limit that is `seconds` longer; this one for 0, or if it has no limit."""
        return TimeLimit(self._seconds + seconds) if seconds > 0 and self._seconds > 0 else self

    def __enter__(self) -> None:
        # The main thread receives the alarm, whichever thread sets the timer.
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
            # First: another thread may have received the alarm, and pass it on only after the timer is off.
            self._armed = False
            signal.setitimer(signal.ITIMER_REAL, 0.0)

    def _on_alarm(self, _: int, frame: FrameType | None) -> None:
        # Raised in one of these methods, the error would leave the timer on.
        if self._armed and not (frame is not None and frame.f_code in _OWN_CODE):
            raise ProcessorTimeoutError("it did not come back in time and was broken off")


_OWN_CODE = frozenset(method.__code__ for method in (TimeLimit.__enter__, TimeLimit.__exit__, TimeLimit._on_alarm))
