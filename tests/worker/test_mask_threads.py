"""The threads of grammars: when they end, and whose processor time counts."""

from __future__ import annotations

import os
import sys
import threading
import time
from functools import partial

import pytest

from fastdeploy_lp.worker import mask_threads
from fastdeploy_lp.worker.mask_threads import SLOW_NICE, MaskThreads

FAR = 60.0
STACK = 1 << 20


class Call:
    """A watched call that is ready once `end` is set, or given up."""

    def __init__(self) -> None:
        self.client = "client"
        self.slow = False
        self.working: threading.Thread | None = None
        self.begun, self.end = threading.Event(), threading.Event()
        self.error: BaseException | None = None

    @property
    def ready(self) -> bool:
        return self.end.is_set() or self.error is not None

    def fail(self, error: BaseException) -> None:
        self.error = error

    def wait(self) -> None:
        self.begun.set()
        self.end.wait(FAR)

    def spin(self) -> None:
        """Use up processor time until given up."""
        while not self.ready:
            time.perf_counter()


def test_threads_end_that_have_had_nothing_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mask_threads, "IDLE_SECONDS", 0.05)
    threads, call = MaskThreads(2, STACK, FAR, lambda: None), Call()
    before = set(threading.enumerate())
    threads.submit(lambda: None)
    threads.submit(lambda: None)
    threads.watch(call)
    call.end.set()
    for started in set(threading.enumerate()) - before:
        started.join(FAR)
        assert not started.is_alive()
    done = threading.Event()
    threads.submit(done.set)
    assert done.wait(FAR)


@pytest.mark.skipif(sys.platform != "linux", reason="processor time of other threads")
def test_the_time_of_a_thread_before_a_call_is_not_the_calls() -> None:
    """A row's calls run in several threads, each with a past of its own."""
    given_up = threading.Event()
    threads, call, spent = MaskThreads(1, STACK, 0.2, given_up.set), Call(), threading.Event()

    def next_call() -> None:
        threads.run(call, call.wait)

    def spend() -> None:
        while time.thread_time() < 0.4:
            pass
        spent.set()

    threads.submit(spend)
    assert spent.wait(FAR)
    first = threading.Thread(target=partial(threads.run, call, call.wait), daemon=True)
    first.start()
    threads.watch(call)
    while threads._watched[call] is None:
        call.begun.wait(0.01)
    # The next call of the same work, in the thread with a past; two looks at it, and it is still there.
    threads.submit(next_call)
    while (seen := threads._watched.get(call)) is not None and seen[0] is first:
        given_up.wait(0.01)
    given_up.wait(3 * mask_threads.WATCH_SECONDS)
    assert call.error is None
    call.end.set()


@pytest.mark.skipif(sys.platform != "linux", reason="priorities of threads")
def test_a_lost_call_keeps_a_priority_at_which_it_can_return() -> None:
    """It takes the interpreter's lock then; at the lowest priority it would hold the lock without a processor."""
    given_up = threading.Event()
    threads, call, seen = MaskThreads(1, STACK, 0.05, given_up.set), Call(), list[tuple[int, int]]()
    held = threading.Event()

    def spin_on() -> None:
        call.spin()
        held.wait(FAR)
        native = threading.get_native_id()
        seen.append((os.sched_getscheduler(native), os.getpriority(os.PRIO_PROCESS, native)))

    done, calls = threading.Event(), iter([call])

    def job() -> None:
        # A replacement of the thread runs the job once more.
        for each in calls:
            threads.run(each, spin_on)
            done.set()

    threads.submit(job)
    threads.watch(call)
    assert given_up.wait(FAR)
    held.set()
    assert done.wait(FAR)
    assert seen == [(os.SCHED_OTHER, SLOW_NICE)]
    assert "takes more than 0.05 seconds" in str(call.error)
