"""What is counted of each processor, and when it is told."""

from __future__ import annotations

import pytest
import support.faulty as faulty
from support.faulty import Fault
from support.outcomes import engine_with, run, using
from support.processors import Sets
from support.sequences import chain_of, request, tiny_engine
from support.tiny import tiny_fd_config

from fastdeploy_lp.logits_processor import Selection
from fastdeploy_lp.logits_processor.builtin.logit_bias import LogitBiasLogitsProcessor
from fastdeploy_lp.worker.engine_core import EngineCore


def test_rows_and_requests_are_counted_for_who_uses_a_processor() -> None:
    engine = engine_with(Sets)
    users = [using("Sets", f"u{length}", length) for length in (2, 3, 5)]
    run(engine, *users, *[request(f"p{i}", [1], max_tokens=4) for i in range(3)])
    stats = engine.runner.chain.stats
    assert (stats["Sets"].requests, stats["Sets"].rows) == (3, 2 + 3 + 5)
    assert stats["Sets"].seconds > 0
    assert (stats["LogitBiasLogitsProcessor"].requests, stats["LogitBiasLogitsProcessor"].rows) == (0, 0)


def test_a_prompt_that_is_not_read_to_its_end_has_no_row() -> None:
    engine = tiny_engine([Sets], max_num_batched_tokens=4)
    long = request("long", range(1, 14), max_tokens=2, selection=Selection(named={"Sets": {"x": 1}}))
    run(engine, request("short", [1], max_tokens=12), long)
    stats = engine.runner.chain.stats["Sets"]
    assert (stats.requests, stats.rows) == (1, 2)


def test_a_request_that_was_preempted_is_counted_once() -> None:
    engine = tiny_engine([Sets])
    asks = Selection(named={"Sets": {"x": 1}})
    engine.add(request("r", [1, 2, 3], max_tokens=4, selection=asks))
    engine.add(request("s", [1, 2, 3], max_tokens=4, selection=Selection(named={"Sets": {}}, shadow=("Sets",))))
    assert engine.finish_preparing() == []
    engine.step()
    engine.scheduler.preempt()
    engine.scheduler.preempt()
    assert len(run(engine).tokens["r"]) == 3
    stats = engine.runner.chain.stats["Sets"]
    assert (stats.requests, stats.shadow.requests) == (1, 1)


def test_a_step_in_which_another_processor_fails_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Fault, "mode", "raise")
    engine = engine_with(Sets, faulty.Native)
    fails = request("fails", [1, 2, 3], max_tokens=5, selection=Selection(named={"Native": {"fail": True}}))
    run(engine, using("Sets", max_tokens=5), fails)
    stats = engine.runner.chain.stats
    assert stats["Native"].faults == 1
    assert stats["Sets"].rows == 5


def test_the_counters_are_told_as_soon_as_something_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Fault, "mode", "raise")
    engine = tiny_engine([faulty.Native])
    engine.add(request("fails", [1, 2, 3], max_tokens=5, selection=Selection(named={"Native": {"fail": True}})))
    engine.add(request("plain", [1], max_tokens=9))
    told = [engine.step().processors for _ in range(5)]
    assert [None if stats is None else stats[0].faults for stats in told] == [None, None, 1, None, None]


def test_an_engine_of_builtins_alone_counts_no_faults() -> None:
    config = tiny_fd_config()
    engine = EngineCore(config, chain_of([LogitBiasLogitsProcessor], config))
    forced = request("r", [1], max_tokens=3, logits_processors_args={"logit_bias": {5: 1000.0}})
    assert run(engine, forced).tokens == {"r": [5, 5, 5]}
    (stats,) = engine.runner.chain.stats.values()
    assert (stats.faults, stats.requests, stats.rows) == (0, 1, 3)
