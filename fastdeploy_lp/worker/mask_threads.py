"""Threads for calls of the grammar library, which no step waits for once they take long."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from queue import Empty, SimpleQueue
from typing import Protocol

from fastdeploy_lp.guided_decoding.compiler import GrammarError
from fastdeploy_lp.guided_decoding.threads import start_daemon

SLOW_SECONDS = 0.02
"""Processor time after which a call goes on at a lower priority, in a thread that serves nothing else."""

SLOW_NICE = 10
"""Its priority. A thread that returns from its call takes the interpreter's lock, and all threads of the process wait
while it holds the lock and waits for a processor. Beside two busy processes they wait 43 ms at most at this priority,
99 ms at 15 and 1.2 s at SCHED_IDLE."""

WATCH_SECONDS = 0.02
IDLE_SECONDS = 10.0
MAX_LOST = 8
MAX_LOST_OF_CLIENT = 2
"""Calls that run beyond their limit; a client with so many may begin no further grammar."""


class Work(Protocol):
    """What a call is for.

    working: the thread in which it runs. ready: it has ended, or was given up by `fail`. slow: it has taken long.
    """

    client: str
    slow: bool
    working: threading.Thread | None

    @property
    def ready(self) -> bool:
        """Whether it has ended."""

    def fail(self, error: BaseException) -> None:
        """Its call takes too long."""


class MaskThreads:
    """Makes calls in threads, of which a slow one takes no thread of the others.

    The library cannot be interrupted. A watched call that takes more than `limit` seconds of processor time fails; its
    thread runs on. Threads start when there is something to do, and end when there has been nothing for a while.

    given_up: called after a call has failed in this way, from any thread. niceness: of the threads from the beginning.
    """

    def __init__(
        self, num_threads: int, stack: int, limit: float, given_up: Callable[[], None], niceness: int = 0
    ) -> None:
        self._num_threads = num_threads
        self._stack = stack
        self._limit = limit
        self._given_up = given_up
        self._niceness = niceness
        self._jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._lock = threading.Condition()
        # Each with the job that it runs.
        self._threads: dict[threading.Thread, Callable[[], None] | None] = {}
        # Each with the thread of its call and that thread's processor time when the watch of the call began.
        self._watched: dict[Work, tuple[threading.Thread, float] | None] = {}
        self._watcher: threading.Thread | None = None
        self._lost: dict[threading.Thread, str] = {}

    def submit(self, job: Callable[[], None]) -> None:
        """Have a thread run a job, which makes each call with `run`.

        A job is run once more by another thread when one of its calls turns out slow: it must take what it is about
        from an iterator that its runs share.
        """
        with self._lock:
            if len(self._threads) < self._num_threads:
                # Where the system has room for no further thread, those that run take the job.
                with suppress(RuntimeError) if self._threads else nullcontext():
                    self._start()
            self._jobs.put(job)

    def run(self, work: Work, call: Callable[[], None]) -> bool:
        """Make a call in this thread; False if the thread is to leave what is left of its job to another one."""
        thread = threading.current_thread()
        work.working = thread
        call()
        work.working = None
        return thread in self._threads

    def watch(self, work: Work) -> None:
        """Nobody waits for this work any more: keep an eye on it until it is ready."""
        with self._lock:
            if work.ready or work in self._watched:
                return
            self._watched[work] = None
            if self._watcher is None:
                self._watcher = start_daemon(self._watch, "guided-watch", 0)
            self._lock.notify()

    def has_room_for(self, client: str) -> bool:
        """False while too many calls of this client, or of all, run beyond their limit."""
        with self._lock:
            lost = list(self._lost.values())
        return len(lost) < MAX_LOST and lost.count(client) < MAX_LOST_OF_CLIENT

    def _start(self) -> None:
        thread = start_daemon(self._serve, "guided", self._stack)
        self._threads.setdefault(thread)

    def _serve(self) -> None:
        thread = threading.current_thread()
        _set_niceness(thread, self._niceness)
        while (job := self._next(thread)) is not None:
            job()
            with self._lock:
                self._lost.pop(thread, None)
                if thread not in self._threads:
                    return
                self._threads[thread] = None

    def _next(self, thread: threading.Thread) -> Callable[[], None] | None:
        """The next job, which the thread runs from now on; None if the thread is to end."""
        with suppress(Empty):
            job = self._jobs.get(timeout=IDLE_SECONDS)
            with self._lock:
                self._threads[thread] = job
            return job
        with self._lock:
            # A job that was put in the meantime counts on this thread.
            if self._jobs.empty():
                del self._threads[thread]
                return None
        return self._next(thread)

    def _watch(self) -> None:
        while True:
            with self._lock:
                if not self._lock.wait_for(lambda: self._watched, IDLE_SECONDS):
                    self._watcher = None
                    return
                lost = [work for work in list(self._watched) if self._is_lost(work)]
            for work in lost:
                reason = f"a call takes more than {self._limit:g} seconds; make the grammar less ambiguous"
                work.fail(GrammarError(reason))
                self._given_up()
            with self._lock:
                self._lock.wait(WATCH_SECONDS)

    def _is_lost(self, work: Work) -> bool:
        """Look at a watched call, which is slow if it has taken some time, and lost if it has taken too much."""
        thread, seen = work.working, self._watched[work]
        if work.ready:
            del self._watched[work]
        if work.ready or thread is None:
            return False
        used = _cpu_seconds(thread)
        if seen is None or seen[0] is not thread:
            self._watched[work] = (thread, used)
            return False
        used -= seen[1]
        if used > SLOW_SECONDS and thread in self._threads:
            work.slow = True
            self._replace(thread)
        if used <= self._limit:
            return False
        del self._watched[work]
        self._lost[thread] = work.client
        return True

    def _replace(self, thread: threading.Thread) -> None:
        """Another thread takes the place of one with a slow call, and its job."""
        job = self._threads.pop(thread)
        _set_niceness(thread, SLOW_NICE)
        self._start()
        if job is not None:
            self._jobs.put(job)


def _cpu_seconds(thread: threading.Thread) -> float:
    """Processor time of a thread that runs; seconds on the clock where the system does not count it."""
    if thread.ident is None or not hasattr(time, "pthread_getcpuclockid"):
        return time.monotonic()
    return time.clock_gettime(time.pthread_getcpuclockid(thread.ident))


def _set_niceness(thread: threading.Thread, niceness: int) -> None:
    """Let what serves all requests go first; only Linux has priorities of threads."""
    if sys.platform == "linux" and thread.native_id is not None:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, thread.native_id, niceness)
