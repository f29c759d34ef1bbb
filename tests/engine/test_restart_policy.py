"""When a worker that ended gets a successor, on a clock of the test's own."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fastdeploy_lp.engine.client.supervisor import LONGEST_DELAY, MAX_FAILED_STARTS, WINDOW_SECONDS, RestartPolicy


class Clock:
    """Stands still until it is set."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_first_failure_is_repaired_at_once_and_later_ones_ever_later() -> None:
    policy = RestartPolicy(20, Clock())
    delays = [policy.delay(was_ready=True) for _ in range(20)]
    assert delays[0] == 0.0
    assert None not in delays
    known = [delay for delay in delays if delay is not None]
    assert known == sorted(known)
    assert known[-1] == LONGEST_DELAY


@given(st.integers(0, 8), st.lists(st.floats(0.01, 2 * WINDOW_SECONDS), max_size=40))
def test_only_failures_of_the_last_minute_count(max_restarts: int, gaps: list[float]) -> None:
    clock, times = Clock(), []
    policy = RestartPolicy(max_restarts, clock)
    for gap in gaps:
        clock.now += gap
        times.append(clock.now)
        recent = [time for time in times if clock.now - time <= WINDOW_SECONDS]
        assert (policy.delay(was_ready=True) is None) == (len(recent) > max_restarts)


def test_an_explained_failure_counts_for_nothing() -> None:
    policy = RestartPolicy(0, Clock())
    assert [policy.delay(was_ready=ready, explained=True) for ready in (True, False, False, False)] == [0.0] * 4
    assert policy.delay(was_ready=True) is None


def test_workers_that_never_get_ready_are_given_up_soon() -> None:
    """However long each of them takes."""
    clock = Clock()
    policy = RestartPolicy(100, clock)
    assert policy.delay(was_ready=True) is not None
    for failed in range(1, MAX_FAILED_STARTS + 1):
        clock.now += 10 * WINDOW_SECONDS
        assert (policy.delay(was_ready=False) is None) == (failed == MAX_FAILED_STARTS)
    assert policy.delay(was_ready=True) is not None
