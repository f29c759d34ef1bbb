"""When refused requests are told to come again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fastdeploy_lp.engine.client.admission import DEFAULT_SECONDS, LONGEST_SECONDS, RetryAfter


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def paced(clock: Clock, seconds: float, count: int = 20) -> RetryAfter:
    """After `count` ends, so many seconds apart."""
    retry = RetryAfter(clock)
    for _ in range(count):
        retry.ended()
        clock.now += seconds
    return retry


def test_without_a_measured_pace_there_is_a_default() -> None:
    retry = RetryAfter(Clock())
    assert retry.seconds(3) == DEFAULT_SECONDS
    retry.ended()
    retry.ended()
    assert retry.seconds(3) == DEFAULT_SECONDS


def test_places_are_given_out_at_the_pace_at_which_they_become_free() -> None:
    """At two a second, twenty clients that are refused in one moment come back over ten seconds."""
    retry = paced(Clock(), 0.5)
    told = [retry.seconds(1) for _ in range(20)]
    assert told == [place // 2 + 1 for place in range(20)]


def test_what_was_promised_is_over_when_its_time_is() -> None:
    clock = Clock()
    retry = paced(clock, 1.0)
    assert [retry.seconds(1) for _ in range(5)] == [1, 2, 3, 4, 5]
    for _ in range(5):
        retry.ended()
        clock.now += 1.0
    assert retry.seconds(1) == 1


@given(st.floats(1e-4, 1e4), st.lists(st.integers(1, 1000), min_size=1, max_size=50))
def test_it_is_always_a_whole_number_of_bearable_seconds(pace: float, wanted: list[int]) -> None:
    retry = paced(Clock(), pace)
    told = [retry.seconds(places) for places in wanted]
    assert all(isinstance(seconds, int) and 1 <= seconds <= LONGEST_SECONDS for seconds in told)
    assert told == sorted(told)
