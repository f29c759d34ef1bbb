"""Threads for calls of the grammar library; steps stop waiting for slow calls."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from queue import Empty, SimpleQueue
from typing import Protocol

from fastdeploy_lp.guided_decoding.compiler import GrammarError
from fastdeploy_lp.guided_decoding.threads import start_daemon
from fastdeploy_lp.platforms.niceness import set_niceness

SLOW_SECONDS = 0.02
"""Processor time after which a call continues at a lower priority, in a dedicated thread."""

SLOW_NICE = 10
"""Niceness of a slow call's thread. A thread that returns from its call takes the interpreter's lock, and all threads
of the process wait while it holds the lock and waits for a processor. With two other busy processes they wait at most
43 ms at this niceness, 99 ms at 15 and 1.2 s at SCHED_IDLE."""

WATCH_SECONDS = 0.02
IDLE_SECONDS = 10.0
MAX_LOST = 8
MAX_LOST_OF_CLIENT = 2
"""Overdue calls per client; a client with this many may start no further grammar."""


class Work(Protocol):
    """Work done by a call.

    working: the thread in which it runs. ready: it has ended, or `fail` has given it up. slow: it has taken long.
    """

    client: str
    slow: bool
    working: threading.Thread | None

    @property
    def ready(self) -> bool:
        """True if it has ended or failed."""

    def fail(self, error: BaseException) -> None:
        """Abandons the work because its call takes too long."""


class MaskThreads:
    """Thread pool for calls; a slow call does not occupy a thread of the pool.

    The library cannot be interrupted. A watched call that takes more than `limit` seconds of processor time fails, but
    its thread keeps running. Threads start on demand and end after `IDLE_SECONDS` without work.

    given_up: called, from any thread, after a call has failed in this way. niceness: initial niceness of the threads.
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
        # Threads and their current jobs.
        self._threads: dict[threading.Thread, Callable[[], None] | None] = {}
        # Each work with the thread of its call and that thread's processor time when watching began.
        self._watched: dict[Work, tuple[threading.Thread, float] | None] = {}
        self._watcher: threading.Thread | None = None
        self._lost: dict[threading.Thread, str] = {}

    def submit(self, job: Callable[[], None]) -> None:
        """Queues a job, which makes each call with `run`.

        Another thread runs the job again when one of its calls turns out slow: the job must take its items from an
        iterator that its runs share.
        """
        with self._lock:
            if len(self._threads) < self._num_threads:
                # If the system refuses another thread, the running ones take the job.
                with suppress(RuntimeError) if self._threads else nullcontext():
                    self._start()
            self._jobs.put(job)

    def run(self, work: Work, call: Callable[[], None]) -> bool:
        """Makes a call in this thread; returns False if another thread takes over the rest of its job."""
        thread = threading.current_thread()
        work.working = thread
        call()
        work.working = None
        return thread in self._threads

    def watch(self, work: Work) -> None:
        """Watches work for which no step waits any more, until it is ready."""
        with self._lock:
            if work.ready or work in self._watched:
                return
            self._watched[work] = None
            if self._watcher is None:
                self._watcher = start_daemon(self._watch, "guided-watch", 0)
            self._lock.notify()

    def has_room_for(self, client: str) -> bool:
        """Returns False while too many calls of this client, or of all clients, are overdue."""
        with self._lock:
            lost = list(self._lost.values())
        return len(lost) < MAX_LOST and lost.count(client) < MAX_LOST_OF_CLIENT

    def _start(self) -> None:
        thread = start_daemon(self._serve, "guided", self._stack)
        self._threads.setdefault(thread)

    def _serve(self) -> None:
        thread = threading.current_thread()
        set_niceness(thread, self._niceness)
        while (job := self._next(thread)) is not None:
            job()
            with self._lock:
                self._lost.pop(thread, None)
                if thread not in self._threads:
                    return
                self._threads[thread] = None

    def _next(self, thread: threading.Thread) -> Callable[[], None] | None:
        """Returns the thread's next job and records it as current; None if the thread must end."""
        with suppress(Empty):
            job = self._jobs.get(timeout=IDLE_SECONDS)
            with self._lock:
                self._threads[thread] = job
            return job
        with self._lock:
            # A job submitted in the meantime relies on this thread.
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
        """Checks a watched call: slow after `SLOW_SECONDS`, lost (True) after the limit."""
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
        """Replaces a thread that has a slow call by a new one, which takes over its job."""
        job = self._threads.pop(thread)
        set_niceness(thread, SLOW_NICE)
        self._start()
        if job is not None:
            self._jobs.put(job)


def _cpu_seconds(thread: threading.Thread) -> float:
    """Returns the processor time of a running thread; clock time if the system does not measure it."""
    if thread.ident is None or not hasattr(time, "pthread_getcpuclockid"):
        return time.monotonic()
    return time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
