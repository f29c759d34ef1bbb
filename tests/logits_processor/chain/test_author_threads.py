"""Calls of processors' code in threads: outcomes, time limits, and one processor's calls beside another's."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.server import wait_until

from fastdeploy_lp.logits_processor.chain import author_threads
from fastdeploy_lp.logits_processor.chain.author_threads import (
    FEW_THREADS,
    MAX_IDLE,
    MAX_LOST,
    SWITCH_INTERVAL,
    UPLOADER_NICENESS,
    AuthorCall,
    AuthorThreads,
    NotInTimeError,
    Outcome,
)

# Longer than a busy machine holds up a thread that has begun.
TIMEOUT = 0.4
FAR = 60.0


class Asked:
    """Waits for the outcome of a call."""

    def __init__(
        self, threads: AuthorThreads, work: Callable[[], Any], processor: str = "X", *, uploader: str | None = None
    ) -> None:
        self._ended = threading.Event()
        self._outcomes: list[Outcome] = []
        self.pending = threads.submit(AuthorCall(processor, work), self._take, uploader=uploader)

    def _take(self, outcome: Outcome) -> None:
        self._outcomes.append(outcome)
        self._ended.set()

    @property
    def ended(self) -> bool:
        return self._ended.is_set()

    def outcome(self) -> Outcome:
        assert self._ended.wait(FAR)
        assert len(self._outcomes) == 1
        return self._outcomes[0]


@pytest.fixture
def held() -> Iterator[threading.Event]:
    """What calls wait for; set when the test is over."""
    event = threading.Event()
    yield event
    event.set()


def test_calls_return_values_in_order() -> None:
    threads = AuthorThreads(FAR)
    asked = [Asked(threads, lambda number=number: number) for number in range(50)]
    assert [each.outcome().result() for each in asked] == list(range(50))


@pytest.mark.parametrize(
    "error", [ValueError("no"), KeyboardInterrupt(), SystemExit(3), asyncio.CancelledError(), GeneratorExit()]
)
def test_any_exception_is_an_outcome_and_the_thread_serves_on(error: BaseException) -> None:
    def fail() -> None:
        raise error

    threads = AuthorThreads(FAR)
    assert Asked(threads, fail).outcome().error is error
    assert Asked(threads, lambda: 1).outcome().value == 1


def test_a_call_that_does_not_return_ends_with_the_processors_name(held: threading.Event) -> None:
    threads = AuthorThreads(TIMEOUT)
    error = Asked(threads, held.wait, "Slow").outcome().error
    assert isinstance(error, NotInTimeError)
    assert str(error) == "logits processor Slow: its own code took longer than 0.4 s"


def test_a_call_whose_thread_begins_late_is_not_too_slow(held: threading.Event) -> None:
    class BeginsLate(AuthorThreads):
        def _work(self, lane: Any) -> None:
            if lane.queue[0].call.processor == "Late":
                held.wait()
            super()._work(lane)

    threads, never = BeginsLate(TIMEOUT), threading.Event()
    late = Asked(threads, lambda: 1, "Late")
    # Its limit ends after that of the other call.
    assert isinstance(Asked(threads, never.wait, "Slow").outcome().error, NotInTimeError)
    never.set()
    assert not late.ended
    held.set()
    assert late.outcome().value == 1


def test_lost_calls_of_one_processor_take_no_thread_of_another(held: threading.Event) -> None:
    threads = AuthorThreads(TIMEOUT)
    lost = [Asked(threads, held.wait, "Slow") for _ in range(2 * MAX_LOST)]
    assert all(isinstance(each.outcome().error, NotInTimeError) for each in lost)
    refused = Asked(threads, lambda: 1, "Slow").outcome().error
    assert "earlier calls of its code have not returned" in str(refused)
    assert Asked(threads, lambda: 1, "Quick").outcome().value == 1


def test_a_processor_serves_again_once_its_lost_calls_have_returned(held: threading.Event) -> None:
    threads, returned = AuthorThreads(TIMEOUT), threading.Semaphore(0)

    def work() -> None:
        held.wait()
        returned.release()

    for asked in [Asked(threads, work) for _ in range(MAX_LOST)]:
        asked.outcome()
    held.set()
    for _ in range(MAX_LOST):
        assert returned.acquire(timeout=FAR)
    # The threads count themselves as returned right after `work`.
    while isinstance(Asked(threads, lambda: 1).outcome().error, NotInTimeError):
        pass
    assert Asked(threads, lambda: 1).outcome().value == 1


def test_without_a_limit_nothing_is_lost(held: threading.Event) -> None:
    threads = AuthorThreads(0.0)
    asked = Asked(threads, held.wait)
    assert Asked(threads, lambda: 1).outcome().value == 1
    held.set()
    assert asked.outcome().value is True


def test_a_call_that_is_cancelled_before_it_begins_never_runs(held: threading.Event) -> None:
    threads = AuthorThreads(FAR)
    ran: list[int] = []
    running = [Asked(threads, held.wait) for _ in range(4)]
    queued = [Asked(threads, lambda number=number: ran.append(number)) for number in range(3)]
    queued[1].pending.cancel()
    held.set()
    for each in [*running, queued[0], queued[2]]:
        each.outcome()
    assert sorted(ran) == [0, 2]


def test_threads_end_that_have_had_nothing_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(author_threads, "IDLE_SECONDS", 0.05)
    before = set(threading.enumerate())
    threads = AuthorThreads(TIMEOUT)
    assert Asked(threads, lambda: 1).outcome().value == 1
    for started in set(threading.enumerate()) - before:
        started.join(FAR)
        assert not started.is_alive()
    assert Asked(threads, lambda: 2).outcome().value == 2


def test_few_threads_wait_for_calls_of_many_processors() -> None:
    threads = AuthorThreads(FAR)
    own = [Asked(threads, threading.current_thread, f"processor {number}") for number in range(5 * MAX_IDLE)]
    started = {each.outcome().value for each in own}
    assert len(started) == 5 * MAX_IDLE
    # A thread returns the outcome before it ends.
    while len(alive := [each for each in started if each.is_alive()]) > MAX_IDLE:
        alive[0].join(0.01)
    again = [Asked(threads, lambda: 1, f"processor {number}") for number in range(5 * MAX_IDLE)]
    assert [each.outcome().value for each in again] == [1] * (5 * MAX_IDLE)


def test_turns_are_longer_the_more_threads_there_are(held: threading.Event) -> None:
    threads, count = AuthorThreads(0), 5 * FEW_THREADS
    asked = [Asked(threads, held.wait, f"processor {number}") for number in range(count)]
    together = sys.getswitchinterval()
    assert together > 0.99 * SWITCH_INTERVAL * count / FEW_THREADS
    held.set()
    for each in asked:
        each.outcome()
    wait_until(lambda: sys.getswitchinterval() < together, FAR)


def test_uploads_of_a_client_share_one_thread_of_low_priority(held: threading.Event) -> None:
    threads = AuthorThreads(FAR)

    def own() -> tuple[int, int]:
        return threading.get_ident(), os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    usual = os.getpriority(os.PRIO_PROCESS, os.getpid())
    first = Asked(threads, held.wait, "one", uploader="hostile")
    second = Asked(threads, own, "two", uploader="hostile")
    assert Asked(threads, own, "three", uploader="other").outcome().value[1] == max(UPLOADER_NICENESS, usual)
    assert Asked(threads, own, "hostile").outcome().value[1] == usual
    assert not second.ended
    held.set()
    first.outcome()
    assert second.outcome().value[1] == max(UPLOADER_NICENESS, usual)
    assert Asked(threads, own, "four", uploader="hostile").outcome().value == second.outcome().value
