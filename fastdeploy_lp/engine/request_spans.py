"""OpenTelemetry spans of requests, sent to a collector over OTLP.

Imports OpenTelemetry only in servers with an endpoint for spans.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from typing_extensions import override

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.plugins.stat_logger import StatLoggerBase
from fastdeploy_lp.stats import ERROR, FinishedRequestStats, IterationStats, SchedulerStats
from fastdeploy_lp.version import __version__

if TYPE_CHECKING:
    from opentelemetry.trace import Span

# The caller's own span, as its header names it (W3C Trace Context), in the task that handles its request.
TRACE_PARENT: ContextVar[str | None] = ContextVar("traceparent", default=None)

_SECOND = 1_000_000_000
_EXPORT_SECONDS = 5.0
# Seconds between two notes of the processors' clocks, and how many notes are kept: seven minutes of them.
_NOTE_SECONDS, _NOTES = 0.05, 8192


class ProcessorClocks:
    """Seconds that each logits processor has taken since the worker started, noted as steps report them.

    A note is as exact as `_NOTE_SECONDS`; times before the oldest note count from that note on.
    """

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=_NOTES)
        self._seconds: deque[dict[str, float]] = deque(maxlen=_NOTES)
        self._latest: dict[str, float] = {}

    def note(self, now: float, stats: SchedulerStats) -> None:
        """Keeps the processors' seconds at a time of the monotonic clock."""
        latest = {each.name: each.seconds for each in stats.processors}
        if any(seconds < self._latest.get(name, 0.0) for name, seconds in latest.items()):
            # A new worker counts from zero.
            self._times.clear()
            self._seconds.clear()
        self._latest = latest
        if not self._times or now - self._times[-1] >= _NOTE_SECONDS:
            self._times.append(now)
            self._seconds.append(latest)

    def since(self, moment: float, name: str) -> float:
        """Returns the seconds that a processor has taken since a time of the monotonic clock."""
        index = max(bisect_right(self._times, moment) - 1, 0)
        before = self._seconds[index].get(name, 0.0) if self._times else 0.0
        return max(self._latest.get(name, 0.0) - before, 0.0)


class SpanStatLogger(StatLoggerBase):
    """Sends a span for each completion, with spans for its queue, prefill, decode and logits processors below it.

    A processor's span begins with the completion's first step and has the duration that the completion's steps spent in
    the processor, for all rows together. A separate thread exports spans.
    """

    def __init__(self, fd_config: FDConfig, engine_index: int = 0) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        endpoint = fd_config.observability_config.otlp_traces_endpoint or ""
        if urlsplit(endpoint).path in ("", "/"):
            endpoint = f"{endpoint.rstrip('/')}/v1/traces"
        service = os.environ.get("OTEL_SERVICE_NAME", "fastdeploy_lp")
        # Ends with the process, after a last export.
        provider = TracerProvider(resource=Resource.create({"service.name": service}))
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint, timeout=_EXPORT_SECONDS)))
        self._tracer = provider.get_tracer("fastdeploy_lp", __version__)
        self._model = fd_config.model_config.served_model_name
        self._engine_index = engine_index
        self._clocks = ProcessorClocks()

    @override
    def record(
        self, scheduler_stats: SchedulerStats | None, iteration_stats: IterationStats | None, engine_idx: int = 0
    ) -> None:
        if iteration_stats is None:
            return
        now = iteration_stats.iteration_timestamp
        if scheduler_stats is not None:
            self._clocks.note(now, scheduler_stats)
        for request in iteration_stats.finished_requests:
            self._send(request, now)

    @override
    def log_engine_initialized(self) -> None:
        """Does nothing: there is no span of the start."""

    def _send(self, request: FinishedRequestStats, now: float) -> None:
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        carrier = {} if request.traceparent is None else {"traceparent": request.traceparent}
        # Spans have times of the wall clock.
        offset = time.time_ns() - int(time.monotonic() * _SECOND)

        def at(moment: float) -> int:
            return int(moment * _SECOND) + offset

        span = self._tracer.start_span(
            "llm_request",
            TraceContextTextMapPropagator().extract(carrier),
            SpanKind.SERVER,
            attributes=self._attributes(request),
            start_time=at(request.arrival),
        )
        self._describe(span, request)
        if request.finish_reason == ERROR:
            span.set_status(Status(StatusCode.ERROR))
        below = set_span_in_context(span)
        for name, begin, end in self._parts(request, now):
            self._tracer.start_span(name, below, start_time=at(begin)).end(at(end))
        span.end(at(now))

    def _attributes(self, request: FinishedRequestStats) -> dict[str, str | int]:
        return {
            "gen_ai.request.id": request.request_id,
            "gen_ai.response.model": self._model,
            "gen_ai.response.finish_reason": request.finish_reason,
            "gen_ai.usage.prompt_tokens": request.num_prompt_tokens,
            "gen_ai.usage.completion_tokens": request.num_generation_tokens,
            "fastdeploy_lp.cached_tokens": request.num_cached_tokens,
            "fastdeploy_lp.completion_index": request.index,
            "fastdeploy_lp.engine": self._engine_index,
        }

    def _describe(self, span: Span, request: FinishedRequestStats) -> None:
        """Adds the attributes that not every request has."""
        for name, value in (
            ("gen_ai.request.max_tokens", request.max_tokens_param),
            ("gen_ai.latency.time_in_queue", request.queued_time),
            ("gen_ai.latency.time_to_first_token", request.time_to_first_token),
            ("gen_ai.latency.time_in_model_prefill", request.prefill_time),
            ("gen_ai.latency.time_in_model_decode", request.decode_time),
            ("gen_ai.latency.time_in_model_inference", request.inference_time),
            ("gen_ai.latency.e2e", request.e2e_latency),
        ):
            if value is not None:
                span.set_attribute(name, value)

    def _parts(self, request: FinishedRequestStats, now: float) -> Iterator[tuple[str, float, float]]:
        """Yields the names, begins and ends of the spans below a completion's, on the monotonic clock."""
        arrival, queued, prefill, decode = (
            request.arrival,
            request.queued_time,
            request.prefill_time,
            request.decode_time,
        )
        yield "queue", arrival, now if queued is None else arrival + queued
        if queued is None:
            return
        scheduled = arrival + queued
        yield "prefill", scheduled, now if prefill is None else scheduled + prefill
        if prefill is not None and decode is not None:
            yield "decode", scheduled + prefill, scheduled + prefill + decode
        for name in request.processors:
            yield f"logits_processor {name}", scheduled, scheduled + self._clocks.since(scheduled, name)
