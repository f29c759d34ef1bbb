"""Looks for drafts come more seldom while they take more time than their drafts save."""

from __future__ import annotations

import pytest

from fastdeploy_lp.worker.drafters.payoff import MOST_REST, Payoff

STEP = 10.0


def rests(payoff: Payoff) -> int:
    """Steps without a look until the next one."""
    count = 0
    while payoff.rests():
        count += 1
    return count


def test_looks_that_save_nothing_come_more_and_more_seldom() -> None:
    payoff, found = Payoff(STEP), []
    for _ in range(400):
        payoff.looked(1.0, 0.0)
        found.append(rests(payoff))
    # At first, looks are expected to save a step.
    assert found[:20] == [0] * 20
    assert sorted(found) == found
    assert found[-1] == MOST_REST
    assert {0, 1, 3, 7, MOST_REST} == set(found)


def test_looks_that_save_more_than_they_take_follow_each_other_again() -> None:
    payoff = Payoff(STEP)
    for _ in range(400):
        payoff.looked(1.0, 0.0)
    rests(payoff)
    payoff.looked(1.0, 100.0)
    assert rests(payoff) == 0


@pytest.mark.parametrize(("saved", "expected"), [(0.9, MOST_REST), (1.1, 0)])
def test_what_looks_save_on_average_counts(saved: float, expected: int) -> None:
    payoff = Payoff(STEP)
    for _ in range(400):
        payoff.looked(1.0, 2 * saved)
        payoff.looked(1.0, 0.0)
    assert rests(payoff) == expected
