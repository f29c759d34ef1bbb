"""The Prometheus logger against plain sums over whatever it is told."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from support.tiny import tiny_fd_config

from fastdeploy_lp.engine.metrics import PrometheusStatLogger
from fastdeploy_lp.logits_processor import ProcessorStats
from fastdeploy_lp.stats import ArrivedRequestStats, DraftStats, FinishedRequestStats, IterationStats, SchedulerStats

counts = st.integers(0, 1000)
# Sums of these are exact.
seconds = st.integers(0, 2**12).map(lambda each: each / 64)
arrived = st.builds(ArrivedRequestStats, num_prompt_tokens=counts, n=st.integers(1, 8), max_tokens=st.none() | counts)
finished = st.builds(
    FinishedRequestStats,
    request_id=st.just("r"),
    index=st.just(0),
    finish_reason=st.sampled_from(["stop", "length", "abort", "error"]),
    num_prompt_tokens=counts,
    num_generation_tokens=st.integers(0, 9),
    num_cached_tokens=counts,
    **{
        name: st.none() | seconds
        for name in ("e2e_latency", "queued_time", "prefill_time", "decode_time", "inference_time")
    },
    mean_time_per_output_token=st.none() | seconds,
)
iterations = st.builds(
    IterationStats,
    iteration_timestamp=seconds,
    num_generation_tokens=counts,
    time_to_first_tokens_iter=st.lists(seconds, max_size=3),
    inter_token_latencies_iter=st.lists(seconds, max_size=3),
    arrived_requests=st.lists(arrived, max_size=3),
    finished_requests=st.lists(finished, max_size=4),
)
schedulers = st.builds(
    SchedulerStats,
    **{
        name: counts
        for name in SchedulerStats.__dataclass_fields__
        if name not in ("step_time", "processors", "drafts")
    },
    processors=st.just([ProcessorStats("a", rows=5, state="quarantined"), ProcessorStats("b")]),
    drafts=st.just([DraftStats("ngram", drafts=2, tokens=9, accepted=3, accepted_at=[2, 1])]),
)


@given(st.lists(st.tuples(st.none() | schedulers, st.none() | iterations), max_size=6))
def test_every_sum_is_that_of_what_was_told(told: list[tuple[SchedulerStats | None, IterationStats | None]]) -> None:
    logger = PrometheusStatLogger(tiny_fd_config(max_num_seqs=5))
    for each in told:
        logger.record(*each)

    def sample(name: str, **labels: str) -> float:
        return logger.registry.get_sample_value(f"fastdeploy_lp:{name}", labels) or 0.0

    told_iterations = [each for _, each in told if each is not None]
    came = [each for iteration in told_iterations for each in iteration.arrived_requests]
    over = [each for iteration in told_iterations for each in iteration.finished_requests]
    by_itself = [each for each in over if each.finish_reason in ("stop", "length")]
    completions = [each for each in by_itself if each.num_generation_tokens]
    first = [each for iteration in told_iterations for each in iteration.time_to_first_tokens_iter]
    between = [each for iteration in told_iterations for each in iteration.inter_token_latencies_iter]
    assert sample("requests_number_total") == len(came)
    assert sample("prompt_tokens_total") == sum(each.num_prompt_tokens for each in came)
    assert sample("request_params_n_sum") == sum(each.n for each in came)
    assert sample("request_params_max_tokens_count") == sum(each.max_tokens is not None for each in came)
    assert sample("generation_tokens_total") == sum(each.num_generation_tokens for each in told_iterations)
    assert sample("time_to_first_token_seconds_sum") == sum(first)
    assert sample("inter_token_latency_seconds_count") == len(between)
    assert sample("inter_token_latency_seconds_sum") == sum(between)
    for reason in ("stop", "length"):
        expected = sum(each.finish_reason == reason for each in over)
        assert sample("request_success_total", finished_reason=reason) == expected
    assert sample("request_aborted_total") == sum(each.finish_reason == "abort" for each in over)
    assert sample("request_failed_total") == sum(each.finish_reason == "error" for each in over)
    assert sample("e2e_request_latency_seconds_sum") == sum(each.e2e_latency or 0 for each in by_itself)
    assert sample("request_generation_tokens_count") == len(completions)
    for name, field in (
        ("request_queue_time_seconds", "queued_time"),
        ("request_prefill_time_seconds", "prefill_time"),
        ("request_decode_time_seconds", "decode_time"),
        ("request_inference_time_seconds", "inference_time"),
        ("time_per_output_token_seconds", "mean_time_per_output_token"),
    ):
        given_times = [getattr(each, field) for each in completions if getattr(each, field) is not None]
        assert (sample(f"{name}_count"), sample(f"{name}_sum")) == (len(given_times), sum(given_times))
    last = next((each for each, _ in reversed(told) if each is not None), SchedulerStats())
    assert logger.scheduler_stats == last
    assert sample("num_requests_running") == last.num_running_reqs
    assert sample("num_requests_waiting") == last.num_waiting_reqs
    assert sample("kv_cache_blocks_used") == last.kv_cache_blocks_used
    assert sample("gpu_cache_usage_perc") == last.kv_cache_usage
    assert sample("hit_token_rate") == last.prefix_cache_hit_rate
    assert sample("num_preemptions_total") == last.num_preemptions
    assert sample("max_batch_size") == 5
    if last.processors:
        assert sample("logits_processor_rows_total", processor="a") == 5
        assert [sample("logits_processor_quarantined", processor=name) for name in "ab"] == [1, 0]
