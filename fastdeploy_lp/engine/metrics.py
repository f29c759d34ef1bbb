"""Prometheus metrics of the engine, under upstream's names with the prefix `fastdeploy_lp:`."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


class EngineMetrics:
    """The counters of one engine, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.running = self._gauge("num_requests_running", "Sequences in slots")
        self.waiting = self._gauge("num_requests_waiting", "Sequences waiting for a slot")
        self.prompt_tokens = self._counter("prompt_tokens", "Prompt tokens taken in")
        self.generation_tokens = self._counter("generation_tokens", "Tokens generated")
        self.requests = Counter(
            "fastdeploy_lp:request_success",
            "Completions that ended, by reason",
            ["finished_reason"],
            registry=self.registry,
        )
        self.time_to_first_token = self._histogram("time_to_first_token_seconds", "From arrival to the first token")
        self.e2e_latency = self._histogram("e2e_request_latency_seconds", "From arrival to the last token")

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"fastdeploy_lp:{name}", text, registry=self.registry)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(f"fastdeploy_lp:{name}", text, registry=self.registry)

    def _histogram(self, name: str, text: str) -> Histogram:
        return Histogram(f"fastdeploy_lp:{name}", text, registry=self.registry, buckets=SECONDS)
