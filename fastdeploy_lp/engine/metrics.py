"""Prometheus metrics of the engine, under upstream's names with the prefix `fastdeploy_lp:`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fastdeploy_lp.engine.processor_states import ProcessorStates
from fastdeploy_lp.logits_processor.stats import OK
from fastdeploy_lp.messages import CacheStats

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


class EngineMetrics:
    """The counters of one engine, in a registry of its own."""

    def __init__(self, processors: ProcessorStates) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_ProcessorCollector(processors))
        self.cache = CacheCollector()
        self.registry.register(self.cache)
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


class CacheCollector(Collector):
    """The worker's account of its KV cache; `stats` is the last one it sent."""

    def __init__(self) -> None:
        self.stats = CacheStats()

    def collect(self) -> Iterator[Metric]:
        """One family a number."""
        stats = self.stats
        for name, text, value in (
            ("kv_cache_blocks", "Blocks of the KV cache", stats.blocks_total),
            ("kv_cache_blocks_used", "Blocks of the KV cache that running sequences hold", stats.blocks_used),
        ):
            yield GaugeMetricFamily(f"fastdeploy_lp:{name}", text, value)
        for name, text, value in (
            ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache", stats.prefix_queries),
            ("prefix_cache_hits", "Prompt tokens found in the prefix cache", stats.prefix_hits),
            ("num_preemptions", "Times that a running sequence had to give up its blocks", stats.preemptions),
        ):
            yield CounterMetricFamily(f"fastdeploy_lp:{name}", text, value)


class _ProcessorCollector(Collector):
    """The worker's counters of each logits processor, read when somebody looks."""

    COUNTERS: ClassVar[dict[str, str]] = {
        "seconds": "Seconds spent in a logits processor",
        "rows": "Rows a logits processor was used on",
        "requests": "Sequences that used a logits processor",
        "faults": "Steps in which a logits processor failed",
        "slow_steps": "Steps in which a logits processor took longer than its time budget",
        "skipped_greedy": "Steps in which a logits processor was left out because every row was greedy",
    }

    def __init__(self, processors: ProcessorStates) -> None:
        self._processors = processors

    def collect(self) -> Iterator[Metric]:
        """One family a counter, one sample a processor."""
        stats = self._processors.stats
        for field, text in self.COUNTERS.items():
            family = CounterMetricFamily(f"fastdeploy_lp:logits_processor_{field}", text, labels=["processor"])
            for each in stats:
                family.add_metric([each.name], getattr(each, field))
            yield family
        states = GaugeMetricFamily(
            "fastdeploy_lp:logits_processor_quarantined", "1 while in quarantine", labels=["processor"]
        )
        for each in stats:
            states.add_metric([each.name], float(each.state != OK))
        yield states
