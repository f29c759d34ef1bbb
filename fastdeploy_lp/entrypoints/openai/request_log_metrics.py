"""Prometheus metrics of the request log."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from fastdeploy_lp.engine.metrics import PREFIX
from fastdeploy_lp.engine.request_log import RequestLog


class RequestLogCollector(Collector):
    """Numbers of recorded requests and of requests that could not be recorded."""

    def __init__(self, log: RequestLog) -> None:
        self._log = log

    def collect(self) -> Iterator[Metric]:
        """Yields one metric family per counter."""
        yield CounterMetricFamily(f"{PREFIX}request_log_records", "Requests written to the log", self._log.recorded)
        yield CounterMetricFamily(f"{PREFIX}request_log_dropped", "Requests that are not in it", self._log.dropped)
