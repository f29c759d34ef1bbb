"""Threads with a time limit for calls of processor authors' code."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from fastdeploy_lp.platforms.niceness import set_niceness

logger = logging.getLogger(__name__)

THREADS_EACH = 4
UPLOADER_NICENESS = 15
"""Of the thread for a client's uploads. A start may take a billion instructions, which the steps are not to wait for;
the interpreter's lock, which the thread takes between two calls of a module, is why it is no higher."""

MAX_LOST = 4
"""Limit of one processor's calls that still run past their time limit; at it, further requests for it are refused."""

IDLE_SECONDS = 60.0
MAX_IDLE = 8
"""Threads of all processors that wait for a call."""

SWITCH_INTERVAL, FEW_THREADS = 0.0002, 8
"""Seconds that Python code in a thread holds the interpreter's lock while the main thread waits for it; with more than
so many threads, in proportion more. Every thread that waits for the lock looks for it once in this time: a hundred of
them, 0.2 ms each, leave the thread that has it no time."""


class NotInTimeError(RuntimeError):
    """A processor's code did not return within its time limit, or earlier calls of it are still running."""


@dataclass(frozen=True)
class Outcome:
    """The value of a call, or the exception that it raised, of any class."""

    value: Any = None
    error: BaseException | None = None

    def result(self) -> Any:
        """Returns the value, or raises the exception."""
        if self.error is not None:
            raise self.error
        return self.value


@dataclass(frozen=True)
class AuthorCall:
    """A call of a processor's own code; `processor` is its declared name.

    extra_seconds: added to the time limit.
    """

    processor: str
    work: Callable[[], Any]
    extra_seconds: float = 0.0

    def outcome(self) -> Outcome:
        """Makes the call in this thread; never raises."""
        try:
            return Outcome(self.work())
        except BaseException as error:  # noqa: BLE001 - an author's code may raise anything, SystemExit included
            return Outcome(error=error)


@dataclass(eq=False)
class PendingCall:
    """A waiting or running call; `done` is called once with its outcome, from any thread."""

    call: AuthorCall
    done: Callable[[Outcome], None]
    deadline: float
    cancelled: bool = False

    def cancel(self) -> None:
        """Prevents the call's start; a running call continues."""
        self.cancelled = True


@dataclass(eq=False)
class _Lane:
    """The calls and threads of one processor. `lost` counts the calls that still run past their limit."""

    changed: threading.Condition
    max_threads: int = THREADS_EACH
    niceness: int = 0
    queue: deque[PendingCall] = field(default_factory=deque)
    running: set[PendingCall] = field(default_factory=set)
    threads: int = 0
    idle: int = 0
    lost: int = 0

    @property
    def lacks_thread(self) -> bool:
        return len(self.queue) > self.idle and self.threads < self.max_threads


class AuthorThreads:
    """Runs calls of processors' code; a processor's calls cannot use up another's threads.

    All uploads of a client share one thread, of low priority.

    timeout: seconds from a call's start to its end, and the longest wait after others; 0 for no limit. A call over
    the limit ends with NotInTimeError. Its thread cannot be stopped: it is replaced, until `MAX_LOST` calls of the
    same processor are lost. Then its calls end with NotInTimeError at once until a lost one returns.

    Threads are daemons. They start on demand and end when idle: at once if MAX_IDLE others wait. A call that keeps the
    interpreter's lock in C code blocks every thread of the process, and no time limit helps against it.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._lock = threading.Lock()
        # By processor, or by the client that has uploaded it.
        self._lanes: dict[tuple[str, str], _Lane] = {}
        self._idle = 0
        self._watch = threading.Condition(self._lock)
        self._watcher: threading.Thread | None = None

    def submit(self, call: AuthorCall, done: Callable[[Outcome], None], *, uploader: str | None = None) -> PendingCall:
        """Queues a call; calls of one processor begin in order. `uploader` is the client that has uploaded it."""
        pending = PendingCall(call, done, time.monotonic() + self._timeout)
        with self._lock:
            lane = self._lane_of(call.processor, uploader)
            refused = lane.lost >= MAX_LOST
            if not refused:
                lane.queue.append(pending)
                self._provide(lane)
                self._wake_watcher()
        if refused:
            done(Outcome(error=self._stuck(pending)))
        return pending

    def _lane_of(self, processor: str, uploader: str | None) -> _Lane:
        changed = threading.Condition(self._lock)
        if uploader is None:
            return self._lanes.setdefault((processor, ""), _Lane(changed))
        return self._lanes.setdefault(("", uploader), _Lane(changed, 1, UPLOADER_NICENESS))

    def _provide(self, lane: _Lane) -> None:
        """Wakes or starts a thread for the lane's queue."""
        if lane.lacks_thread:
            lane.threads += 1
            threading.Thread(target=self._work, args=(lane,), name="author-code", daemon=True).start()
            share_interpreter()
        else:
            lane.changed.notify()

    def _wake_watcher(self) -> None:
        if self._timeout <= 0:
            return
        if self._watcher is None:
            self._watcher = threading.Thread(target=self._enforce_limits, name="author-code-watch", daemon=True)
            self._watcher.start()
        else:
            self._watch.notify()

    def _work(self, lane: _Lane) -> None:
        set_niceness(threading.current_thread(), lane.niceness)
        # A call's result must not stay alive in this frame while the thread waits for the next call.
        while self._serve(lane):
            pass
        share_interpreter()

    def _serve(self, lane: _Lane) -> bool:
        """Makes the lane's next call; returns False if the thread must end."""
        pending = self._next(lane)
        if pending is None:
            return False
        outcome = pending.call.outcome()
        with self._lock:
            in_time = pending in lane.running
            lane.running.discard(pending)
            # A call past its limit already has its outcome, and this thread its replacement.
            lane.lost -= not in_time
        if in_time:
            pending.done(outcome)
        return in_time

    def _next(self, lane: _Lane) -> PendingCall | None:
        """Returns the lane's next call, marked as running; None if the thread must end."""
        with self._lock:
            while True:
                while lane.queue:
                    pending = lane.queue.popleft()
                    if not pending.cancelled:
                        pending.deadline = time.monotonic() + self._timeout + pending.call.extra_seconds
                        lane.running.add(pending)
                        return pending
                if not self._wait_for_call(lane):
                    lane.threads -= 1
                    if not (lane.threads or lane.running or lane.lost):
                        self._lanes = {name: each for name, each in self._lanes.items() if each is not lane}
                    return None

    def _wait_for_call(self, lane: _Lane) -> bool:
        """Returns True once the lane has a call; False after IDLE_SECONDS, or at once if MAX_IDLE threads wait."""
        if self._idle >= MAX_IDLE:
            return False
        self._idle += 1
        lane.idle += 1
        woken = lane.changed.wait(IDLE_SECONDS)
        lane.idle -= 1
        self._idle -= 1
        return woken or bool(lane.queue)

    def _enforce_limits(self) -> None:
        while True:
            with self._lock:
                late = [each for lane in self._lanes.values() for each in self._overdue(lane)]
                if not late and not self._wait_for_deadline():
                    self._watcher = None
                    return
            for pending, error in late:
                logger.error("%s", error)
                pending.done(Outcome(error=error))

    def _wait_for_deadline(self) -> bool:
        """Waits until a call is due or a new one arrives; returns False after IDLE_SECONDS without one."""
        deadlines = [p.deadline for lane in self._lanes.values() for p in (*lane.running, *lane.queue)]
        if not deadlines:
            return self._watch.wait_for(
                lambda: any(lane.queue or lane.running for lane in self._lanes.values()), IDLE_SECONDS
            )
        self._watch.wait(max(min(deadlines) - time.monotonic(), 0.0))
        return True

    def _overdue(self, lane: _Lane) -> list[tuple[PendingCall, NotInTimeError]]:
        """Removes the late calls from the lane and returns each with its error."""
        now = time.monotonic()
        lost = [pending for pending in lane.running if pending.deadline <= now]
        lane.running.difference_update(lost)
        lane.lost += len(lost)
        lane.threads -= len(lost)
        stuck = lane.lost >= MAX_LOST
        # Threads that have no call yet begin the first ones, however late a busy machine lets them run.
        for pending in islice(lane.queue, lane.threads - len(lane.running)):
            pending.deadline = now + self._timeout
        waiting = [pending for pending in lane.queue if stuck or pending.deadline <= now]
        lane.queue = deque(pending for pending in lane.queue if pending not in waiting)
        if lost and lane.queue:
            self._provide(lane)
        found = [(pending, self._too_slow(pending)) for pending in lost]
        return found + [(each, self._stuck(each)) for each in waiting if not each.cancelled]

    def _too_slow(self, pending: PendingCall) -> NotInTimeError:
        name = pending.call.processor
        limit = self._timeout + pending.call.extra_seconds
        return NotInTimeError(f"logits processor {name}: its own code took longer than {limit:g} s")

    def _stuck(self, pending: PendingCall) -> NotInTimeError:
        name = pending.call.processor
        return NotInTimeError(f"logits processor {name}: earlier calls of its code have not returned")


def share_interpreter() -> None:
    """Sets the time of a thread's turn by the number of this process's threads."""
    sys.setswitchinterval(SWITCH_INTERVAL * max(1.0, threading.active_count() / FEW_THREADS))
