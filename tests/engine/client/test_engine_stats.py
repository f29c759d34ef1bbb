"""From the worker's messages to what loggers are told."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from support.stat_loggers import Keeps
from support.tiny import tiny_fd_config

from fastdeploy_lp.engine.client.engine_stats import EngineStats, StatLoggers, step_came
from fastdeploy_lp.engine.client.processor_states import ProcessorStates
from fastdeploy_lp.engine.client.work import SequenceTimes
from fastdeploy_lp.messages import SequenceStep
from fastdeploy_lp.stats import IterationStats, SchedulerStats


def made() -> tuple[EngineStats, Keeps]:
    keeps = Keeps(tiny_fd_config())
    return EngineStats(ProcessorStates([]), StatLoggers([("keeps", keeps)])), keeps


def outputs(preemptions: int = 0) -> SchedulerStats:
    return SchedulerStats(2, 1, 3, 12, 40, 10, preemptions, 0.25)


def test_a_message_of_the_worker_is_told_whole() -> None:
    stats, keeps = made()
    iteration = IterationStats(5.0, 7)
    stats.step(outputs(4), iteration)
    first, told = keeps.scheduler
    assert first == SchedulerStats(processors=[])
    expected = {
        "num_running_reqs": 2,
        "num_waiting_reqs": 1,
        "step_time": 0.25,
        "num_preemptions": 4,
        "kv_cache_blocks_used": 3,
        "kv_cache_blocks_total": 12,
        "kv_cache_usage": 0.25,
        "prefix_cache_queries": 40,
        "prefix_cache_hits": 10,
        "prefix_cache_hit_rate": 0.25,
    }
    assert {name: getattr(told, name) for name in expected} == expected
    assert keeps.iterations == [iteration]


@given(st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=5), max_size=4))
def test_preemptions_of_all_steps_add_up_also_when_the_worker_is_another(workers: list[list[int]]) -> None:
    """A worker's counter runs from nothing; each step is told as what it gained."""
    stats, keeps = made()
    for gained in workers:
        stats.died([], 0)
        total = 0
        # The first message of a worker comes before it could preempt anybody.
        for count in (0, *gained):
            total += count
            stats.step(outputs(total), IterationStats(0.0))
    told = [each.num_preempted_reqs for each in keeps.iterations]
    assert told == [count for gained in workers for count in (0, *gained)]


def test_after_the_workers_end_nothing_runs() -> None:
    stats, keeps = made()
    stats.step(outputs(), IterationStats(0.0))
    stats.died([], 0)
    assert (keeps.scheduler[-1].num_running_reqs, keeps.scheduler[-1].num_waiting_reqs) == (0, 0)
    assert keeps.finished == []


def test_tokens_have_the_moment_of_their_message() -> None:
    times = SequenceTimes(arrival=1.0)
    iterations = [IterationStats(moment) for moment in (1.5, 1.75, 2.75)]
    for iteration in iterations:
        step_came(SequenceStep("r", [1]), times, iteration)
    assert [each.time_to_first_tokens_iter for each in iterations] == [[0.5], [], []]
    assert [each.inter_token_latencies_iter for each in iterations] == [[], [0.25], [1.0]]
    assert (times.first_token, times.last_token) == (1.5, 2.75)


def test_a_prompt_counts_when_its_request_is_taken_in() -> None:
    stats, keeps = made()
    stats.arrived(7)
    stats.arrived(5, 3, 20)
    assert [each.num_prompt_tokens for each in keeps.iterations] == [7, 5]
    assert [(each.n, each.max_tokens) for each in keeps.arrived] == [(1, None), (3, 20)]
