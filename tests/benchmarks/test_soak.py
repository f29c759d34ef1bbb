"""Tests of the soak's pure parts: its requests, its account of memory and order, its verdict."""

from __future__ import annotations

import os
import random
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from soak import Result, max_inversion, parse_arguments, start_order
from soak_memory import Point, growth_mb, parse_metrics, parse_status, status_mb, worker_pid
from soak_plot import render_svg
from soak_requests import ABORTED, MAX_TOKENS, MAX_WORDS, random_plans

from fastdeploy_lp.entrypoints.bench.load import Sample
from fastdeploy_lp.entrypoints.openai.protocol.chat import ChatCompletionRequest

SAMPLE = Sample(started=1.0, ended=3.0, first_text=2.0)
IDLE = {"num_requests_running": 0.0, "num_requests_waiting": 0.0, "kv_cache_blocks_used": 0.0}


def point(done: int, mb: float) -> Point:
    """The same memory in all processes."""
    return Point(done, mb, mb, mb, {})


def test_plans_are_valid_requests_of_the_promised_sizes() -> None:
    """The server's own model of a body takes each of them."""
    for plan in random_plans(500, seed=1):
        params = ChatCompletionRequest(**plan.body).sampling_params()
        assert params.max_tokens is not None
        assert 1 <= params.max_tokens <= MAX_TOKENS
        assert 1 <= len(plan.body["messages"][0]["content"].split()) <= MAX_WORDS
        assert plan.leave_after_chunks is None or plan.leave_after_seconds is None


def test_plans_are_a_mix() -> None:
    """Every feature occurs with and without, some prompts begin alike, and about the promised share leaves."""
    plans = random_plans(2000, seed=2)
    for name in ("seed", "repetition_penalty", "logprobs", "logit_bias"):
        assert 100 < sum(name in plan.body for plan in plans) < 1900
    beginnings = [" ".join(plan.body["messages"][0]["content"].split()[:50]) for plan in plans]
    assert len(set(beginnings)) < 1900
    leaving = [plan for plan in plans if (plan.leave_after_chunks, plan.leave_after_seconds) != (None, None)]
    assert abs(len(leaving) / len(plans) - ABORTED) < 0.05
    assert any(plan.leave_after_chunks == 0 for plan in leaving)
    assert any(plan.leave_after_seconds is not None for plan in leaving)


def test_plans_repeat_with_their_seed() -> None:
    """Same seed, same plans; another seed, others."""
    assert random_plans(20, seed=3) == random_plans(20, seed=3)
    assert random_plans(20, seed=3) != random_plans(20, seed=4)


def test_inversion_is_the_most_places_late() -> None:
    """Against an order shifted by hand, and against gaps."""
    assert max_inversion([]) == 0
    assert max_inversion([2, 5, 9]) == 0
    assert max_inversion([1, 2, 3, 0]) == 3
    for places in range(10):
        order = [*range(1, places + 1), 0, *range(places + 1, 12)]
        assert max_inversion(order) == places


def test_start_order_sorts_by_time_and_leaves_out_the_silent() -> None:
    """Ties stay in the order of sending."""
    times = [random.Random(5).choice((1.0, 2.0)) for _ in range(30)]
    order = start_order([None, *times])
    assert order == sorted(range(1, 31), key=lambda index: (times[index - 1], index))


def test_growth_counts_from_a_fifth() -> None:
    """What is filled before is no growth."""
    points = [point(0, 10), point(10, 50), point(20, 100), point(60, 130), point(100, 104)]
    assert growth_mb(points) == {"api_rss_mb": 4, "worker_rss_mb": 4, "worker_anonymous_mb": 4}
    with pytest.raises(ValueError, match="points"):
        growth_mb([])


def test_status_and_metrics_are_read() -> None:
    """From text that is known, and from this very process."""
    text = "Name:\tpython\nVmRSS:\t    2000 kB\nThreads:\t4\n"
    assert parse_status(text) == {"VmRSS": pytest.approx(2.048)}
    own = status_mb(os.getpid())
    assert own["VmRSS"] >= own["RssAnon"] > 0
    assert parse_metrics('# HELP a b\na:b 3.0\nc{d="e"} 4.0\nf 5e2\n') == {"a:b": 3.0, "f": 500.0}
    with pytest.raises(ProcessLookupError):
        worker_pid(os.getpid())


def test_every_broken_must_is_named() -> None:
    """A clean result has none; a failure, something left over and a missing metric each have one."""
    failed = Sample(started=1.0, error="HTTP 500")
    assert Result([SAMPLE], left_over=IDLE).broken == []
    assert "HTTP 500" in Result([SAMPLE, failed], left_over=IDLE).broken[0]
    assert "kv_cache_blocks_used is 3" in Result([SAMPLE], left_over=IDLE | {"kv_cache_blocks_used": 3.0}).broken[0]
    assert Result([SAMPLE], left_over=IDLE | {"num_requests_waiting": float("nan")}).broken
    assert Result([], left_over=IDLE).broken


def test_the_report_counts_waits_of_aborted_requests() -> None:
    """But not as completed ones."""
    slow = Sample(started=0.0, first_text=9.0)
    report = Result([SAMPLE], aborted=[slow], left_over=IDLE).report()
    assert (report["completed"], report["aborted"], report["failed"]) == (1, 1, 0)
    assert report["ttft_ms"]["max"] == 9000
    assert report["latency_ms"]["count"] == 1


def test_the_plot_is_svg_with_a_spot_for_each_point() -> None:
    """Within its bounds."""
    root = ElementTree.fromstring(render_svg([point(0, 1), point(5, 3), point(10, 2)]))
    lines = [each for each in root.iter() if each.tag.endswith("polyline")]
    assert len(lines) == 3
    width, height = float(root.get("width", 0)), float(root.get("height", 0))
    for line in lines:
        spots = [tuple(map(float, spot.split(","))) for spot in line.get("points", "").split()]
        assert len(spots) == 3
        assert all(0 <= x <= width and 0 <= y <= height for x, y in spots)


def test_a_directory_that_is_not_there_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before hours of work."""
    with pytest.raises(SystemExit):
        parse_arguments(["--output", str(tmp_path / "none")])
    assert "--output: no directory" in capsys.readouterr().err
