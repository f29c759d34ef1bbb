"""Prometheus metrics of HTTP requests."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram

from fastdeploy_lp.engine.metrics import PREFIX, SECONDS

# Clients may send any method name; bounds the number of labels.
METHODS = {"GET", "POST", "OPTIONS", "HEAD", "PUT", "DELETE", "PATCH"}


class HttpMetrics:
    """Counts requests by method, route and status, in the engine's registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Counter(
            f"{PREFIX}http_requests",
            "HTTP requests by method, route and status; 499: the client went before the answer",
            ["method", "route", "status"],
            registry=registry,
        )
        self._seconds = Histogram(
            f"{PREFIX}http_request_duration_seconds",
            "From a request's arrival to its answer's last byte",
            ["route"],
            registry=registry,
            buckets=SECONDS,
        )

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """Counts a finished request."""
        self._requests.labels(method if method in METHODS else "other", route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)
