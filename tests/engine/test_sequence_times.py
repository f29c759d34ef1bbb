"""Seconds between a sequence's moments."""

from __future__ import annotations

import pytest

from fastdeploy_lp.engine.client.work import SequenceTimes


def test_parts_add_up() -> None:
    times = SequenceTimes(arrival=1.0, scheduled=1.5, first_token=3.5, last_token=9.5)
    assert (times.queue, times.prefill, times.decode) == (0.5, 2.0, 6.0)
    assert (times.time_to_first_token, times.inference) == (2.5, 8.0)


@pytest.mark.parametrize(("tokens", "seconds"), [(0, None), (1, None), (2, 6.0), (4, 2.0)])
def test_time_per_token_needs_two_of_them(tokens: int, seconds: float | None) -> None:
    assert SequenceTimes(0.0, 0.0, 1.0, 7.0).time_per_output_token(tokens) == seconds


def test_what_has_not_happened_has_no_time() -> None:
    times = SequenceTimes(arrival=1.0)
    parts = (times.queue, times.prefill, times.decode, times.inference, times.time_to_first_token)
    assert parts == (None,) * 5
    assert times.time_per_output_token(3) is None
