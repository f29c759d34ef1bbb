"""The first calls of a processor have a budget of their own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import pytest
from paddle import Tensor
from support.outcomes import engine_with, run, using

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.logits_processor import LogitsProcessor
from fastdeploy_lp.logits_processor.chain.entry import FIRST_STEPS, FirstCalls


class Compiles(LogitsProcessor):
    """Spins so many seconds in the calls of `apply` that `seconds` lists, as a first-use compilation does."""

    only_with_args = True
    seconds: ClassVar[dict[int, float]] = {}
    calls: ClassVar[int] = 0

    def __init__(self, fd_config: FDConfig) -> None: ...

    def update_state(self, share_inputs: Mapping[str, Any]) -> None: ...

    def apply(self, logits: Tensor) -> Tensor:
        import time

        Compiles.calls += 1
        until = time.perf_counter() + self.seconds.get(Compiles.calls, 0.0)
        while time.perf_counter() < until:
            pass
        return logits


@pytest.fixture(autouse=True)
def no_calls() -> Iterator[None]:
    Compiles.calls = 0
    yield
    Compiles.seconds = {}


def test_a_first_call_is_neither_broken_off_nor_a_slow_step() -> None:
    # Ten times the budget of 0.02 s would break it off.
    Compiles.seconds = {1: 0.4}
    engine = engine_with(Compiles, time_budget=0.02, max_faults=1, first_calls=60.0)
    outcome = run(engine, using("Compiles", max_tokens=5))
    assert (outcome.errors, len(outcome.tokens["r"])) == ({}, 5)
    stats = engine.runner.chain.stats["Compiles"]
    assert (stats.faults, stats.slow_steps, stats.state) == (0, 0, "ok")
    assert stats.seconds >= 0.4


def test_a_first_call_that_does_not_return_is_broken_off_once_its_budget_is_used_up() -> None:
    Compiles.seconds = {1: 1e9, 2: 1e9}
    engine = engine_with(Compiles, time_budget=0.02, max_faults=0, first_calls=0.1)
    for _ in range(2):
        outcome = run(engine, using("Compiles"))
        assert "ProcessorTimeoutError" in outcome.errors["r"]
    (entry,) = [each for each in engine.runner.chain._main.entries if each.name == "Compiles"]
    assert entry.first_calls.seconds_left == 0.0


@pytest.mark.parametrize(
    ("excesses", "excused"), [([2.0, 2.0, 2.0], [2.0, 2.0, 1.0]), ([-1.0, 0.0, 9.0], [0.0, 0.0, 5.0]), ([], [])]
)
def test_the_budget_is_used_up_by_what_exceeds_the_usual_one(excesses: list[float], excused: list[float]) -> None:
    first = FirstCalls(5.0)
    assert [first.excuse(each) for each in excesses] == excused


def test_later_steps_have_the_usual_budget() -> None:
    first = FirstCalls(5.0)
    for _ in range(FIRST_STEPS - 1):
        first.count_step()
    assert first.excuse(1.0) == 1.0
    first.count_step()
    assert (first.seconds_left, first.excuse(1.0)) == (0.0, 0.0)
