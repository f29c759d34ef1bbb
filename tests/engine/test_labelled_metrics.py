"""The metrics of several workers in one registry."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from fastdeploy_lp.engine.metrics import MetricsOfAll


def worker_registry(count: int) -> CollectorRegistry:
    registry = CollectorRegistry()
    Counter("served", "Requests", ["reason"], registry=registry).labels("stop").inc(count)
    Histogram("seconds", "Time", registry=registry, buckets=(1.0,)).observe(0.5)
    return registry


def test_samples_carry_the_index_of_their_worker() -> None:
    both = MetricsOfAll([worker_registry(3), worker_registry(5)]).registry
    assert [both.get_sample_value("served_total", {"engine": each, "reason": "stop"}) for each in "01"] == [3, 5]
    assert both.get_sample_value("seconds_bucket", {"engine": "1", "le": "1.0"}) == 1


def test_a_family_is_told_once_with_all_samples() -> None:
    both = MetricsOfAll([worker_registry(3), worker_registry(5)])
    text = generate_latest(both.registry).decode()
    assert text.count("# TYPE served_total counter") == 1
    assert text.count("\nserved_total{") == 2


def test_the_servers_own_metrics_have_no_such_label() -> None:
    both = MetricsOfAll([worker_registry(1)])
    Counter("http", "Requests", registry=both.registry).inc()
    assert both.registry.get_sample_value("http_total") == 1


def test_what_is_counted_later_shows() -> None:
    registry = CollectorRegistry()
    both = MetricsOfAll([registry]).registry
    Counter("late", "Later", registry=registry).inc(2)
    assert both.get_sample_value("late_total", {"engine": "0"}) == 2
