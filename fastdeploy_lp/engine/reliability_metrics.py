"""Prometheus metrics of failures around requests, and of recoveries."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter

from fastdeploy_lp.engine.metrics import PREFIX


class ReliabilityMetrics:
    """Reliability counters in the engine's registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.worker_restarts = Counter(
            f"{PREFIX}worker_restarts", "Workers that took the place of one that had ended", registry=registry
        )
        self.replays = Counter(
            f"{PREFIX}request_replays", "Sequences that ran again because the worker ended", registry=registry
        )
        self.lost = Counter(f"{PREFIX}request_lost", "Requests that failed because the worker ended", registry=registry)
        self.timeouts = Counter(f"{PREFIX}request_timeout", "Requests whose own time was over", registry=registry)
        self.refused = Counter(
            f"{PREFIX}request_refused", "Requests that were refused because too many waited", registry=registry
        )
