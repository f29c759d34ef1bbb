"""Prometheus metrics of one engine, and of several in one registry."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import ClassVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.plugins.stat_logger import StatLoggerBase
from fastdeploy_lp.stats import (
    ABORT,
    ERROR,
    OK,
    ArrivedRequestStats,
    FinishedRequestStats,
    IterationStats,
    SchedulerStats,
)


class TokenHistogram(Collector):
    """A histogram for one thread, without locks: 0.1 us per value, `prometheus_client.Histogram` takes 0.8 us."""

    def __init__(self, name: str, text: str, bounds: Sequence[float]) -> None:
        self._name = name
        self._text = text
        self._bounds = list(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, values: Iterable[float]) -> None:
        """Counts values."""
        counts, bounds = self._counts, self._bounds
        for value in values:
            counts[bisect_left(bounds, value)] += 1
            self._sum += value

    def collect(self) -> Iterator[Metric]:
        """Yields the single family."""
        names = [*map(str, self._bounds), "+Inf"]
        buckets = list(zip(names, map(float, accumulate(self._counts)), strict=True))
        yield HistogramMetricFamily(self._name, self._text, buckets=buckets, sum_value=self._sum)


PREFIX = "fastdeploy_lp:"
TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
TOKENS = (1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
COUNTS = (1, 2, 3, 4, 5, 10, 20, 50, 100)
SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


class PrometheusStatLogger(StatLoggerBase):
    """The engine's built-in stat logger for Prometheus, with its own registry.

    Every metric is updated once per request, sequence or step, except the time between two tokens.
    """

    def __init__(self, fd_config: FDConfig, engine_index: int = 0) -> None:  # noqa: ARG002 - there is one
        self.registry = CollectorRegistry()
        self._scheduler = SchedulerCollector()
        self.registry.register(self._scheduler)
        self._running = self._gauge("num_requests_running", "Sequences in slots")
        self._waiting = self._gauge("num_requests_waiting", "Sequences waiting for a slot")
        self._prompt_tokens = self._counter("prompt_tokens", "Prompt tokens taken in")
        self._generation_tokens = self._counter("generation_tokens", "Tokens generated")
        self._requests = Counter(
            f"{PREFIX}request_success",
            "Completions that ended, by reason",
            ["finished_reason"],
            registry=self.registry,
        )
        self._gauge("max_batch_size", "Sequences that can run at once").set(fd_config.scheduler_config.max_num_seqs)
        self._aborted = self._counter("request_aborted", "Sequences that were aborted, by clients or operators")
        self._failed = self._counter("request_failed", "Sequences that could not go on")
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

    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats | None,
        engine_idx: int = 0,  # noqa: ARG002 - there is one
    ) -> None:
        """Counts the events."""
        if scheduler_stats is not None:
            self._scheduler.stats = scheduler_stats
            self._running.set(scheduler_stats.num_running_reqs)
            self._waiting.set(scheduler_stats.num_waiting_reqs)
        if iteration_stats is None:
            return
        if iteration_stats.num_generation_tokens:
            self._generation_tokens.inc(iteration_stats.num_generation_tokens)
        for seconds in iteration_stats.time_to_first_tokens_iter:
            self._time_to_first_token.observe(seconds)
        self._inter_token.observe(iteration_stats.inter_token_latencies_iter)
        for arrived in iteration_stats.arrived_requests:
            self._count_arrived(arrived)
        for finished in iteration_stats.finished_requests:
            self._count_finished(finished)

    def log_engine_initialized(self) -> None:
        """Does nothing: no metric counts it."""

    @property
    def scheduler_stats(self) -> SchedulerStats:
        """The worker's latest statistics."""
        return self._scheduler.stats

    def _count_arrived(self, request: ArrivedRequestStats) -> None:
        self._arrived.inc()
        self._prompt_tokens.inc(request.num_prompt_tokens)
        self._prompt_lengths.observe(request.num_prompt_tokens)
        self._n.observe(request.n)
        if request.max_tokens is not None:
            self._max_tokens.observe(request.max_tokens)

    def _count_finished(self, request: FinishedRequestStats) -> None:
        """Counts an ended sequence; lengths and latencies exclude aborted and failed ones."""
        if request.finish_reason == ABORT:
            self._aborted.inc()
            return
        if request.finish_reason == ERROR:
            self._failed.inc()
            return
        self._requests.labels(request.finish_reason).inc()
        if request.e2e_latency is not None:
            self._e2e_latency.observe(request.e2e_latency)
        if not request.num_generation_tokens:  # a pooling prompt
            return
        self._output_lengths.observe(request.num_generation_tokens)
        for histogram, seconds in (
            (self._queue, request.queued_time),
            (self._prefill, request.prefill_time),
            (self._decode, request.decode_time),
            (self._inference, request.inference_time),
            (self._per_token, request.mean_time_per_output_token),
        ):
            if seconds is not None:
                histogram.observe(seconds)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"{PREFIX}{name}", text, registry=self.registry)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(f"{PREFIX}{name}", text, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: Sequence[float] = SECONDS) -> Histogram:
        return Histogram(f"{PREFIX}{name}", text, registry=self.registry, buckets=buckets)


class SchedulerCollector(Collector):
    """The worker's statistics of its KV cache and of each logits processor, collected on each scrape."""

    COUNTERS: ClassVar[dict[str, str]] = {
        "seconds": "Seconds spent in a logits processor",
        "rows": "Rows a logits processor was used on",
        "requests": "Sequences that used a logits processor",
        "faults": "Steps in which a logits processor failed",
        "slow_steps": "Steps in which a logits processor took longer than its time budget",
        "skipped_greedy": "Steps in which a logits processor was left out because every row was greedy",
        "finishes": "Sequences that a logits processor ended",
        "emitted": "Values that a logits processor sent to clients",
        "rewinds": "Times that a logits processor took tokens of a sequence back",
    }

    SHADOW_COUNTERS: ClassVar[dict[str, str]] = {
        "tokens": "Tokens that a logits processor in shadow was tried on",
        "changed": "Tokens that a logits processor in shadow would have changed",
        "faults": "Tokens and steps in which a logits processor failed in shadow",
        "seconds": "Seconds spent in a logits processor in shadow",
        "requests": "Sequences that had a logits processor in shadow",
    }

    def __init__(self) -> None:
        self.stats = SchedulerStats()

    def collect(self) -> Iterator[Metric]:
        """Yields one family per value."""
        yield from self._cache()
        yield from self._processors()
        yield from self._drafts()

    def _cache(self) -> Iterator[Metric]:
        stats = self.stats
        for name, text, value in (
            ("kv_cache_blocks", "Blocks of the KV cache", stats.kv_cache_blocks_total),
            ("kv_cache_blocks_used", "Blocks of the KV cache that running sequences hold", stats.kv_cache_blocks_used),
            # Also on a CPU: dashboards for the upstream server use this name.
            ("gpu_cache_usage_perc", "Share of the KV cache in use, 0 to 1", stats.kv_cache_usage),
            (
                "hit_token_rate",
                "Share of prompt tokens that were in the prefix cache, 0 to 1",
                stats.prefix_cache_hit_rate,
            ),
        ):
            yield GaugeMetricFamily(f"{PREFIX}{name}", text, value)
        for name, text, value in (
            ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache", stats.prefix_cache_queries),
            ("prefix_cache_hits", "Prompt tokens found in the prefix cache", stats.prefix_cache_hits),
            ("num_preemptions", "Times that a running sequence had to give up its blocks", stats.num_preemptions),
        ):
            yield CounterMetricFamily(f"{PREFIX}{name}", text, value)

    def _drafts(self) -> Iterator[Metric]:
        """Yields the counters of draft tokens, under vLLM's names."""
        for name, field, text in (
            ("num_drafts", "drafts", "Drafts that were verified"),
            ("num_draft_tokens", "tokens", "Draft tokens that were verified"),
            ("num_accepted_tokens", "accepted", "Draft tokens that became output"),
        ):
            family = CounterMetricFamily(f"{PREFIX}spec_decode_{name}", text, labels=["method"])
            for each in self.stats.drafts:
                family.add_metric([each.kind], getattr(each, field))
            yield family
        name, text = "num_accepted_tokens_per_pos", "Draft tokens that became output, by position in the draft"
        family = CounterMetricFamily(f"{PREFIX}spec_decode_{name}", text, labels=["method", "position"])
        for each in self.stats.drafts:
            for position, count in enumerate(each.accepted_at):
                family.add_metric([each.kind, str(position)], count)
        yield family

    def _processors(self) -> Iterator[Metric]:
        """Yields one sample per processor."""
        processors = self.stats.processors
        for field, text in self.COUNTERS.items():
            family = CounterMetricFamily(f"{PREFIX}logits_processor_{field}", text, labels=["processor"])
            for each in processors:
                family.add_metric([each.name], getattr(each, field))
            yield family
        for field, text in self.SHADOW_COUNTERS.items():
            family = CounterMetricFamily(f"{PREFIX}logits_processor_shadow_{field}", text, labels=["processor"])
            for each in processors:
                family.add_metric([each.name], getattr(each.shadow, field))
            yield family
        states = GaugeMetricFamily(
            f"{PREFIX}logits_processor_quarantined", "1 while in quarantine", labels=["processor"]
        )
        for each in processors:
            states.add_metric([each.name], float(each.state != OK))
        yield states


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


LABEL = "engine"


class LabelledRegistries(Collector):
    """The metrics of several registries, one family per name, with the registry's index as the label `engine`."""

    def __init__(self, registries: Sequence[CollectorRegistry]) -> None:
        self._registries = list(registries)

    def collect(self) -> Iterator[Metric]:
        """Yields one family per name."""
        families: dict[str, Metric] = {}
        for index, registry in enumerate(self._registries):
            for found in registry.collect():
                if found.name not in families:
                    families[found.name] = Metric(found.name, found.documentation, found.type, found.unit)
                families[found.name].samples += [
                    sample._replace(labels={LABEL: str(index), **sample.labels}) for sample in found.samples
                ]
        yield from families.values()


class VLLMNames(Collector):
    """All families of a registry, and vLLM's families a second time with its names and labels.

    Dashboards of vLLM select by `model_name` and `engine`; a single engine is number 0.
    """

    RENAMED: ClassVar[dict[str, tuple[str, ...]]] = {
        **{
            name: (name,)
            for name in (
                "num_requests_running",
                "num_requests_waiting",
                "num_preemptions",
                "prefix_cache_queries",
                "prefix_cache_hits",
                "prompt_tokens",
                "generation_tokens",
                "request_success",
                "request_prompt_tokens",
                "request_generation_tokens",
                "request_params_max_tokens",
                "request_params_n",
                "time_to_first_token_seconds",
                "inter_token_latency_seconds",
                "e2e_request_latency_seconds",
                "request_queue_time_seconds",
                "request_prefill_time_seconds",
                "request_decode_time_seconds",
                "request_inference_time_seconds",
            )
        },
        # Its name before 0.10, and the one since.
        "gpu_cache_usage_perc": ("gpu_cache_usage_perc", "kv_cache_usage_perc"),
        "time_per_output_token_seconds": ("request_time_per_output_token_seconds",),
    }

    def __init__(self, registry: CollectorRegistry, model_name: str) -> None:
        self._registry = registry
        self._labels = {"model_name": model_name, LABEL: "0"}

    def collect(self) -> Iterator[Metric]:
        """Yields each family, followed by its second names."""
        for family in self._registry.collect():
            yield family
            for name in self.RENAMED.get(family.name.removeprefix(PREFIX), ()):
                yield self._renamed(family, f"vllm:{name}")

    def _renamed(self, family: Metric, name: str) -> Metric:
        renamed = Metric(name, family.documentation, family.type, family.unit)
        renamed.samples = [
            sample._replace(name=f"{name}{sample.name.removeprefix(family.name)}", labels=self._labels | sample.labels)
            for sample in family.samples
        ]
        return renamed


class MetricsOfAll:
    """One registry with the metrics of all workers; the server can add its own."""

    def __init__(self, registries: Sequence[CollectorRegistry]) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(LabelledRegistries(registries))
