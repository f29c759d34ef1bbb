"""Prometheus metrics of the engine, under upstream's names with the prefix `fastdeploy_lp:`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fastdeploy_lp.engine.processor_states import ProcessorStates
from fastdeploy_lp.engine.sequence_times import SequenceTimes
from fastdeploy_lp.engine.token_histogram import TokenHistogram
from fastdeploy_lp.logits_processor.stats import OK
from fastdeploy_lp.messages import CacheStats

PREFIX = "fastdeploy_lp:"
TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
TOKENS = (1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
COUNTS = (1, 2, 3, 4, 5, 10, 20, 50, 100)
SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


class EngineMetrics:
    """The counters of one engine, in a registry of its own.

    Everything is counted once a request, a sequence or a step, but for the time between two tokens.
    """

    def __init__(self, processors: ProcessorStates, max_num_seqs: int) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_ProcessorCollector(processors))
        self.cache = CacheCollector()
        self.registry.register(self.cache)
        self.running = self._gauge("num_requests_running", "Sequences in slots")
        self.waiting = self._gauge("num_requests_waiting", "Sequences waiting for a slot")
        self._prompt_tokens = self._counter("prompt_tokens", "Prompt tokens taken in")
        self.generation_tokens = self._counter("generation_tokens", "Tokens generated")
        self._requests = Counter(
            f"{PREFIX}request_success",
            "Completions that ended, by reason",
            ["finished_reason"],
            registry=self.registry,
        )
        self._gauge("max_batch_size", "Sequences that can run at once").set(max_num_seqs)
        self.aborted = self._counter("request_aborted", "Sequences that were aborted, by clients or operators")
        self.failed = self._counter("request_failed", "Sequences that could not go on")
        self._arrived = self._counter("requests_number", "Requests taken in; a request for n completions is one")
        self._prompt_lengths = self._histogram("request_prompt_tokens", "Tokens of a prompt", TOKENS)
        self._output_lengths = self._histogram("request_generation_tokens", "Tokens of a completion", TOKENS)
        self._max_tokens = self._histogram("request_params_max_tokens", "Tokens that a completion may have", TOKENS)
        self._n = self._histogram("request_params_n", "Completions that a request asks for", COUNTS)
        self._build_latencies()

    def _build_latencies(self) -> None:
        self._time_to_first_token = self._histogram("time_to_first_token_seconds", "From arrival to the first token")
        self._e2e_latency = self._histogram("e2e_request_latency_seconds", "From arrival to the last token")
        self._queue = self._histogram("request_queue_time_seconds", "From arrival to a slot")
        self._prefill = self._histogram("request_prefill_time_seconds", "From a slot to the first token")
        self._decode = self._histogram("request_decode_time_seconds", "From the first token to the last one")
        self._inference = self._histogram("request_inference_time_seconds", "From a slot to the last token")
        self._per_token = self._histogram(
            "time_per_output_token_seconds", "Mean time between the tokens of a completion", TOKEN_SECONDS
        )
        name, text = "inter_token_latency_seconds", "Time between two tokens of a completion"
        self._inter_token = TokenHistogram(f"{PREFIX}{name}", text, TOKEN_SECONDS)
        self.registry.register(self._inter_token)

    def request_came(self, prompt_tokens: int, n: int, max_tokens: int | None) -> None:
        """Count a request that was taken in."""
        self._arrived.inc()
        self._prompt_tokens.inc(prompt_tokens)
        self._prompt_lengths.observe(prompt_tokens)
        self._n.observe(n)
        if max_tokens is not None:
            self._max_tokens.observe(max_tokens)

    def token_came(self, times: SequenceTimes, now: float) -> None:
        """Write down the moment of a sequence's newest token."""
        if times.last_token is None:
            times.first_token = now
            self._time_to_first_token.observe(now - times.arrival)
        else:
            self._inter_token.observe(now - times.last_token)
        times.last_token = now

    def sequence_ended(self, times: SequenceTimes, num_tokens: int, reason: str) -> None:
        """Count a completion that ended by itself."""
        self._requests.labels(reason).inc()
        self._output_lengths.observe(num_tokens)
        for histogram, seconds in (
            (self._e2e_latency, None if times.last_token is None else times.last_token - times.arrival),
            (self._queue, times.queue),
            (self._prefill, times.prefill),
            (self._decode, times.decode),
            (self._inference, times.inference),
            (self._per_token, times.time_per_output_token(num_tokens)),
        ):
            if seconds is not None:
                histogram.observe(seconds)

    def pooling_ended(self, reason: str, seconds: float) -> None:
        """Count a pooled prompt, which has no tokens."""
        self._requests.labels(reason).inc()
        self._e2e_latency.observe(seconds)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"{PREFIX}{name}", text, registry=self.registry)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(f"{PREFIX}{name}", text, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: Sequence[float] = SECONDS) -> Histogram:
        return Histogram(f"{PREFIX}{name}", text, registry=self.registry, buckets=buckets)


class CacheCollector(Collector):
    """The worker's account of its KV cache; `stats` is the last one it sent."""

    def __init__(self) -> None:
        self.stats = CacheStats()

    def collect(self) -> Iterator[Metric]:
        """One family a number."""
        stats = self.stats
        hit_rate = _share(stats.prefix_hits, stats.prefix_queries)
        for name, text, value in (
            ("kv_cache_blocks", "Blocks of the KV cache", stats.blocks_total),
            ("kv_cache_blocks_used", "Blocks of the KV cache that running sequences hold", stats.blocks_used),
            # On a CPU, too: dashboards for the upstream server look for this name.
            (
                "gpu_cache_usage_perc",
                "Share of the KV cache in use, 0 to 1",
                _share(stats.blocks_used, stats.blocks_total),
            ),
            ("hit_token_rate", "Share of prompt tokens that were in the prefix cache, 0 to 1", hit_rate),
        ):
            yield GaugeMetricFamily(f"{PREFIX}{name}", text, value)
        for name, text, value in (
            ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache", stats.prefix_queries),
            ("prefix_cache_hits", "Prompt tokens found in the prefix cache", stats.prefix_hits),
            ("num_preemptions", "Times that a running sequence had to give up its blocks", stats.preemptions),
        ):
            yield CounterMetricFamily(f"{PREFIX}{name}", text, value)


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


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

    SHADOW_COUNTERS: ClassVar[dict[str, str]] = {
        "tokens": "Tokens that a logits processor in shadow was tried on",
        "changed": "Tokens that a logits processor in shadow would have changed",
        "faults": "Tokens and steps in which a logits processor failed in shadow",
        "seconds": "Seconds spent in a logits processor in shadow",
        "requests": "Sequences that had a logits processor in shadow",
    }

    def __init__(self, processors: ProcessorStates) -> None:
        self._processors = processors

    def collect(self) -> Iterator[Metric]:
        """One family a counter, one sample a processor."""
        stats = self._processors.stats
        for field, text in self.COUNTERS.items():
            family = CounterMetricFamily(f"{PREFIX}logits_processor_{field}", text, labels=["processor"])
            for each in stats:
                family.add_metric([each.name], getattr(each, field))
            yield family
        for field, text in self.SHADOW_COUNTERS.items():
            family = CounterMetricFamily(f"{PREFIX}logits_processor_shadow_{field}", text, labels=["processor"])
            for each in stats:
                family.add_metric([each.name], getattr(each.shadow, field))
            yield family
        states = GaugeMetricFamily(
            f"{PREFIX}logits_processor_quarantined", "1 while in quarantine", labels=["processor"]
        )
        for each in stats:
            states.add_metric([each.name], float(each.state != OK))
        yield states
