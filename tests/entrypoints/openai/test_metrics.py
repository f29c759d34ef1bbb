"""Prometheus metrics: where they are, and that they count the right things."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.chat import ENDLESS, HELLO, metric, opened_stream, post, wait_for_running, wait_for_text
from support.server import ServerProcess

COUNTED = (
    "requests_number_total",
    "request_aborted_total",
    "request_prompt_tokens_sum",
    "request_generation_tokens_sum",
    "request_params_n_sum",
    "request_params_max_tokens_sum",
    "request_queue_time_seconds_sum",
    "request_prefill_time_seconds_sum",
    "request_decode_time_seconds_sum",
    "request_inference_time_seconds_sum",
    "time_to_first_token_seconds_sum",
    "time_per_output_token_seconds_count",
    "inter_token_latency_seconds_count",
    "inter_token_latency_seconds_sum",
    "prompt_tokens_total",
    "generation_tokens_total",
    "time_to_first_token_seconds_count",
    "e2e_request_latency_seconds_count",
    "e2e_request_latency_seconds_sum",
)
NAMES = (
    "fastdeploy_lp:num_requests_running",
    "fastdeploy_lp:num_requests_waiting",
    "fastdeploy_lp:prompt_tokens_total",
    "fastdeploy_lp:generation_tokens_total",
    "fastdeploy_lp:prefix_cache_queries_total",
    "fastdeploy_lp:prefix_cache_hits_total",
    "fastdeploy_lp:kv_cache_blocks",
    "fastdeploy_lp:kv_cache_blocks_used",
    "fastdeploy_lp:num_preemptions_total",
    "fastdeploy_lp:time_to_first_token_seconds_bucket",
    "fastdeploy_lp:e2e_request_latency_seconds_bucket",
)


def counters(server: ServerProcess) -> dict[str, float]:
    """What only goes up, from one look."""
    families = text_string_to_metric_families(httpx.get(server.metrics_url).text)
    samples = [sample for family in families for sample in family.samples]
    found = {(sample.name, *sample.labels.items()): sample.value for sample in samples}
    values = {name: found.get((f"fastdeploy_lp:{name}",), 0.0) for name in COUNTED}
    ends = {
        reason: ("fastdeploy_lp:request_success_total", ("finished_reason", reason)) for reason in ("stop", "length")
    }
    return values | {f"ended by {reason}": found.get(key, 0.0) for reason, key in ends.items()}


def gained(server: ServerProcess, bodies: list[dict[str, Any]]) -> dict[str, float]:
    """By how much these requests, run together, moved the counters."""
    before = counters(server)
    with ThreadPoolExecutor(len(bodies)) as pool:
        for answer in pool.map(lambda body: post(server, body), bodies):
            answer.raise_for_status()
    after = counters(server)
    return {name: after[name] - before[name] for name in before}


@pytest.mark.parametrize("fixture", ["server", "strict_server"])
def test_metrics_are_on_their_port_or_the_api_port(fixture: str, request: pytest.FixtureRequest) -> None:
    """`curl` does not follow a redirect, and neither do some scrapers."""
    server: ServerProcess = request.getfixturevalue(fixture)
    answer = httpx.get(server.metrics_url)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain")
    assert all(f"\n{name}" in answer.text for name in NAMES)


def test_api_port_has_no_metrics_when_they_have_their_own(server: ServerProcess) -> None:
    assert httpx.get(f"{server.url}/metrics").status_code == 404


def test_tokens_and_ends_are_counted(lasting_server: ServerProcess) -> None:
    prompt = httpx.post(f"{lasting_server.url}/tokenize", json={"messages": HELLO}).json()
    lengths = [{"messages": HELLO, "max_tokens": count, "ignore_eos": True} for count in (3, 7, 12)]
    # Whatever its first token is, it is one to stop at.
    stop = {"messages": HELLO, "max_tokens": 5, "stop_token_ids": list(range(512))}
    gain = gained(lasting_server, [*lengths, stop])
    assert gain["prompt_tokens_total"] == 4 * prompt["count"]
    assert gain["generation_tokens_total"] == 3 + 7 + 12 + 1
    assert gain["ended by stop"] == 1
    assert gain["ended by length"] == 3
    assert gain["time_to_first_token_seconds_count"] == 4
    assert gain["e2e_request_latency_seconds_count"] == 4
    assert gain["e2e_request_latency_seconds_sum"] > 0


def test_every_choice_generates_tokens(strict_server: ServerProcess) -> None:
    gain = gained(strict_server, [{"messages": HELLO, "n": 3, "max_tokens": 4, "ignore_eos": True}])
    assert gain["generation_tokens_total"] == 3 * 4
    assert gain["ended by length"] == 3


def test_times_of_parts_add_up(strict_server: ServerProcess) -> None:
    """They come from two processes and several histograms."""
    gain = gained(strict_server, [{"messages": HELLO, "n": 2, "max_tokens": 5, "ignore_eos": True}] * 2)
    queue, prefill, decode, inference = (
        gain[f"request_{part}_time_seconds_sum"] for part in ("queue", "prefill", "decode", "inference")
    )
    assert min(queue, prefill, decode) > 0
    assert inference == pytest.approx(prefill + decode)
    assert gain["time_to_first_token_seconds_sum"] == pytest.approx(queue + prefill)
    assert gain["e2e_request_latency_seconds_sum"] == pytest.approx(queue + inference)
    assert gain["inter_token_latency_seconds_sum"] == pytest.approx(decode)
    assert gain["inter_token_latency_seconds_count"] == 4 * 4
    assert gain["time_per_output_token_seconds_count"] == 4


def test_what_requests_ask_for_is_counted(strict_server: ServerProcess) -> None:
    body = {"messages": HELLO, "n": 2, "max_tokens": 3, "ignore_eos": True}
    gain = gained(strict_server, [body, {**body, "n": 1}])
    assert gain["requests_number_total"] == 2
    assert gain["request_params_n_sum"] == 3
    assert gain["request_params_max_tokens_sum"] == 6
    assert gain["request_generation_tokens_sum"] == 9
    assert gain["request_prompt_tokens_sum"] == gain["prompt_tokens_total"]


def test_shares_lie_between_nothing_and_everything(server: ServerProcess) -> None:
    with opened_stream(server, ENDLESS) as payloads:
        wait_for_text(payloads)
        used, total = metric(server, "kv_cache_blocks_used"), metric(server, "kv_cache_blocks")
        assert 0 < metric(server, "gpu_cache_usage_perc") <= 1
        assert 0 < used <= total
    wait_for_running(server, 0)
    hits, queries = metric(server, "prefix_cache_hits_total"), metric(server, "prefix_cache_queries_total")
    assert metric(server, "hit_token_rate") == pytest.approx(hits / queries)
    assert metric(server, "max_batch_size") == 32


def test_refused_request_counts_nothing(strict_server: ServerProcess) -> None:
    before = counters(strict_server)
    assert post(strict_server, {"messages": HELLO, "max_tokens": 100_000}).status_code == 400
    assert post(strict_server, {"messages": HELLO, "logits_processors_args": {"no": 1}}).status_code == 400
    assert counters(strict_server) == before


def test_nothing_runs_when_all_have_ended(server: ServerProcess) -> None:
    post(server, {"messages": HELLO, "max_tokens": 1}).raise_for_status()
    assert metric(server, "num_requests_running") == 0
    assert metric(server, "num_requests_waiting") == 0


def test_names_of_vllm_have_the_same_values(scripted_server: ServerProcess) -> None:
    post(scripted_server, {"messages": HELLO, "max_tokens": 3}).raise_for_status()
    text = httpx.get(scripted_server.metrics_url).text
    families = {family.name: family for family in text_string_to_metric_families(text)}
    labels = {"model_name": "smollm2-135m", "engine": "0"}
    # A family of its own in the text, with the time at which a counter began.
    second = [name for name in families if name.startswith("vllm:") and not name.endswith("_created")]
    assert {"vllm:num_requests_running", "vllm:kv_cache_usage_perc", "vllm:request_success"} <= set(second)
    for name in second:
        source = {
            "vllm:kv_cache_usage_perc": "gpu_cache_usage_perc",
            "vllm:request_time_per_output_token_seconds": "time_per_output_token_seconds",
        }.get(name, name.removeprefix("vllm:"))
        ours = families[f"fastdeploy_lp:{source}"]
        assert [(sample.labels, sample.value) for sample in families[name].samples] == [
            (labels | sample.labels, sample.value) for sample in ours.samples
        ]
        suffixes = {sample.name.removeprefix(name) for sample in families[name].samples}
        assert suffixes == {sample.name.removeprefix(ours.name) for sample in ours.samples}


def test_names_of_vllm_are_there_on_demand_only(strict_server: ServerProcess) -> None:
    assert "vllm:" not in httpx.get(strict_server.metrics_url).text
