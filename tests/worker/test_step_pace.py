"""What prompts may add to a step, by the time that they have taken."""

from __future__ import annotations

from fastdeploy_lp.worker.fairness import FIRST_TOKENS, StepPace

BUDGET = 512


def test_the_first_prompt_is_cut_as_if_it_were_slow() -> None:
    assert StepPace(0.2).allowance(BUDGET) == FIRST_TOKENS


def test_nothing_is_held_back_without_a_limit() -> None:
    unlimited = StepPace(0.0)
    unlimited.took(10.0, 1, BUDGET)
    assert unlimited.allowance(BUDGET) == BUDGET


def test_the_time_of_those_that_generate_is_not_the_prompts() -> None:
    pace = StepPace(0.2)
    pace.took(0.5, 8, 0)
    pace.took(0.7, 8, 100)
    assert pace.allowance(BUDGET) == 100


def test_prompts_are_never_stopped_and_never_get_more_than_the_budget() -> None:
    pace = StepPace(0.2)
    pace.took(600.0, 0, BUDGET)
    assert pace.allowance(BUDGET) == 1
    assert pace.allowance(BUDGET, least=3) == 3
    assert pace.allowance(2, least=3) == 2


def test_few_tokens_are_as_many_as_the_limit_has_time_for() -> None:
    """A chunk of 10 ms, and 2.5 ms a token: four fit in 20 ms, and one is where they begin."""
    pace = StepPace(0.02)
    pace.took(0.05, 1, 0)
    pace.took(0.35, 1, 1)
    assert pace.allowance(BUDGET) == 1
    for _ in range(40):
        tokens = pace.allowance(BUDGET)
        pace.took(0.05 + 0.01 + 0.0025 * tokens, 1, tokens)
    assert pace.allowance(BUDGET) in {3, 4}


def test_one_slow_step_is_forgotten() -> None:
    pace = StepPace(0.2)
    pace.took(30.0, 1, BUDGET)
    for _ in range(40):
        pace.took(0.001, 1, pace.allowance(BUDGET))
    assert pace.allowance(BUDGET) == BUDGET


def test_an_estimate_from_steps_of_one_token_does_not_let_a_whole_budget_in() -> None:
    """The steps before took longer than those with a prompt token do now, so that the token seems to cost nothing."""
    pace = StepPace(0.005)
    pace.took(0.024, 1, 0)
    pace.took(0.0264, 1, 1)
    for _ in range(60):
        assert pace.allowance(1) == 1
        pace.took(0.0144, 1, 1)
    seconds = []
    for _ in range(40):
        tokens = pace.allowance(BUDGET)
        seconds.append(0.012 + 0.0024 * tokens)
        pace.took(seconds[-1], 1, tokens)
    assert max(seconds) < 0.06
