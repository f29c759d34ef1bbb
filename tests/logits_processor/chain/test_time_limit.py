"""A processor that takes too long is counted, broken off, and put into quarantine."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import pytest
import support.faulty as faulty
from paddle import Tensor
from support.outcomes import engine_with, run, using
from support.sequences import request

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.logits_processor import LogitsProcessor
from fastdeploy_lp.logits_processor.chain.time_limit import ProcessorTimeoutError, TimeLimit


class Slow(LogitsProcessor):
    """Waits in the methods that `waits` names, for rows that use it."""

    only_with_args = True
    waits: ClassVar[dict[str, float]] = {}

    def __init__(self, fd_config: FDConfig) -> None: ...

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        self._wait("update_state")

    def apply(self, logits: Tensor) -> Tensor:
        self._wait("apply")
        return logits

    def _wait(self, method: str) -> None:
        until = time.perf_counter() + self.waits.get(method, 0.0)
        while time.perf_counter() < until:
            pass


class SlowRequest(faulty.Request):
    def new_req_logits_processor(self, params: Any) -> Any:
        def process(output_ids: list[int], row: Tensor) -> Tensor:
            Slow._wait(self, "apply")  # type: ignore[arg-type]
            return row

        return process if params.extra_args is not None else None

    waits = Slow.waits


@pytest.fixture
def waits() -> Iterator[dict[str, float]]:
    yield Slow.waits
    Slow.waits.clear()


@pytest.mark.parametrize(
    "each",
    [
        {"update_state": 0.12},
        {"apply": 0.12},
        {"update_state": 0.12, "apply": 0.12},
        {"update_state": 0.06, "apply": 0.06},
    ],
)
def test_a_step_beyond_the_time_budget_is_counted_once(waits: dict[str, float], each: dict[str, float]) -> None:
    waits.update(each)
    engine = engine_with(Slow, first_calls=0.0, time_budget=0.1, max_faults=0)
    assert run(engine, using("Slow"), request("plain", [4], max_tokens=5)).errors == {}
    stats = engine.runner.chain.stats["Slow"]
    assert (stats.slow_steps, stats.faults, stats.state) == (3, 0, "ok")
    assert stats.seconds >= 3 * sum(each.values())


def test_slow_steps_count_towards_quarantine(waits: dict[str, float]) -> None:
    waits["apply"] = 0.06
    engine = engine_with(Slow, first_calls=0.0, time_budget=0.05, max_faults=2)
    outcome = run(engine, using("Slow", max_tokens=10))
    assert len(outcome.tokens["r"]) == 2
    assert outcome.unavailable == {"r"}
    assert "budget is 0.05 s" in outcome.errors["r"]


class Follows(Slow):
    """Follows every request's tokens, and notes whether it missed one."""

    only_with_args = False
    missed: ClassVar[bool] = False

    def __init__(self, fd_config: FDConfig) -> None:
        self._seen: dict[str, int] = {}

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        for slot in np.flatnonzero(~share_inputs["stop_flags"][:, 0]).tolist():
            name, tokens = share_inputs["req_ids"][slot], int(share_inputs["step_idx"][slot, 0])
            Follows.missed |= self._seen.get(name, tokens - 1) != tokens - 1
            self._seen[name] = tokens


def test_after_quarantine_it_does_not_go_on_with_a_state_that_lacks_tokens(waits: dict[str, float]) -> None:
    Follows.missed = False
    engine = engine_with(Follows, first_calls=0.0, time_budget=0.5, max_faults=1)
    engine.add(request("plain", [1, 2], max_tokens=6))
    waits["apply"] = 0.55
    engine.step()
    waits.clear()
    assert engine.runner.chain.stats["Follows"].state == "quarantined"
    engine.step()
    engine.reset_processor("Follows")
    run(engine)
    assert (Follows.missed, engine.runner.chain.stats["Follows"].state) == (False, "ok")


def test_a_budget_far_below_what_a_clock_can_tell_is_exceeded_without_harm() -> None:
    engine = engine_with(Slow, first_calls=0.0, time_budget=1e-9, max_faults=0)
    outcome = run(engine, using("Slow"))
    stats = engine.runner.chain.stats["Slow"]
    # The alarm may come before the first line of the processor or after its last.
    assert stats.slow_steps + stats.faults > 0
    assert outcome.errors or len(outcome.tokens["r"]) == 3
    assert not engine.has_work


def test_without_a_budget_nothing_is_slow(waits: dict[str, float]) -> None:
    waits["apply"] = 0.02
    engine = engine_with(Slow, first_calls=0.0, time_budget=0.0)
    assert run(engine, using("Slow")).errors == {}
    assert engine.runner.chain.stats["Slow"].slow_steps == 0


@pytest.mark.parametrize("method", ["update_state", "apply"])
def test_a_loop_without_end_is_broken_off(waits: dict[str, float], method: str) -> None:
    waits[method] = 1e9
    engine = engine_with(Slow, first_calls=0.0, time_budget=0.02, max_faults=0)
    outcome = run(engine, using("Slow"), request("plain", [4], max_tokens=5))
    assert set(outcome.errors) == {"r"}
    assert "logits processor Slow failed: ProcessorTimeoutError" in outcome.errors["r"]
    assert len(outcome.tokens["plain"]) == 5
    assert engine.runner.chain.stats["Slow"].faults == 1


def test_a_loop_without_end_in_one_requests_callable_ends_that_request(waits: dict[str, float]) -> None:
    waits["apply"] = 1e9
    engine = engine_with(SlowRequest, first_calls=0.0, time_budget=0.02, max_faults=0)
    outcome = run(engine, using("SlowRequest"), request("plain", [4], max_tokens=5))
    assert set(outcome.errors) == {"r"}
    assert "ProcessorTimeoutError" in outcome.errors["r"]


def test_every_requests_callable_is_broken_off(waits: dict[str, float]) -> None:
    waits["apply"] = 1.0
    engine = engine_with(SlowRequest, first_calls=0.0, time_budget=0.02, max_faults=0)
    outcome = run(
        engine, using("SlowRequest", "a", 1), using("SlowRequest", "b", 1), request("plain", [4], max_tokens=2)
    )
    assert set(outcome.errors) == {"a", "b"}
    assert engine.runner.chain.stats["SlowRequest"].faults == 2


def test_the_alarm_of_another_threads_block_reaches_nobody() -> None:
    limit = TimeLimit(0.01)
    entered = threading.Event()
    done = threading.Event()

    def block() -> None:
        with limit:
            entered.set()
            done.wait()

    thread = threading.Thread(target=block, daemon=True)
    thread.start()
    assert entered.wait(5)
    # The time in which an alarm would come.
    assert not done.wait(0.05)
    done.set()
    thread.join()


def test_no_alarm_comes_behind_the_block() -> None:
    """Whenever it comes: before the block, in it or at its end."""
    limit = TimeLimit(1e-4)
    broken_off = 0
    for count in range(0, 20_000, 50):
        try:
            with limit:
                sum(range(count))
        except ProcessorTimeoutError:
            broken_off += 1
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert broken_off > 0
