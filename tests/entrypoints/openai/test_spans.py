"""OpenTelemetry spans, as a collector in this process receives them from a real server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from support.server import ServerProcess
from support.tiny_checkpoint import write_tiny_checkpoint

from fastdeploy_lp.engine.request_spans import ProcessorClocks
from fastdeploy_lp.startup.engine_args import EngineArgs
from fastdeploy_lp.stats import ProcessorStats, SchedulerStats

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Collector:
    """An OTLP receiver on a free port."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.services: set[str] = set()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.take(self.path, ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Says nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def take(self, path: str, request: ExportTraceServiceRequest) -> None:
        assert path == "/v1/traces"
        for resource in request.resource_spans:
            self.services |= {a.value.string_value for a in resource.resource.attributes if a.key == "service.name"}
            self.spans += [span for scope in resource.scope_spans for span in scope.spans]

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collector]:
    """The spans of three requests: two completions below a caller's span, one with a broken header, one refused."""
    collector = Collector()
    model = write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"))
    options = ["--logits-processors", "LogitBiasLogitsProcessor", "--otlp-traces-endpoint", collector.url]
    try:
        with ServerProcess(*options, model=model) as server:
            url, body = f"{server.url}/v1/completions", {"prompt": "he", "max_tokens": 5, "ignore_eos": True}
            biased = body | {"n": 2, "logits_processors_args": {"logit_bias": {"7": 1.0}}}
            httpx.post(url, json=biased, headers={"traceparent": f"00-{TRACE}-{PARENT}-01"}).raise_for_status()
            httpx.post(url, json=body, headers={"traceparent": "no trace"}).raise_for_status()
            assert httpx.post(url, json=body | {"temperature": -1}).status_code == 400
        # The last ones are sent as the server ends.
        yield collector
    finally:
        collector.close()


def attributes_of(span: Span) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}


def roots_of(collector: Collector) -> list[Span]:
    return [span for span in collector.spans if span.name == "llm_request"]


def test_each_completion_has_a_span_below_its_callers(collected: Collector) -> None:
    roots = roots_of(collected)
    assert collected.services == {"fastdeploy_lp"}
    traced = [span for span in roots if span.trace_id.hex() == TRACE]
    assert len(roots) == 3
    assert [span.parent_span_id.hex() for span in traced] == [PARENT] * 2
    assert {attributes_of(span)["fastdeploy_lp.completion_index"] for span in traced} == {0, 1}
    (alone,) = [span for span in roots if span not in traced]
    assert not alone.parent_span_id


def test_parts_fill_their_requests_time_in_order(collected: Collector) -> None:
    for root in roots_of(collected):
        parts = {span.name: span for span in collected.spans if span.parent_span_id == root.span_id}
        assert list(parts)[:3] == ["queue", "prefill", "decode"]
        queue, prefill, decode = (parts[name] for name in ("queue", "prefill", "decode"))
        assert queue.start_time_unix_nano == root.start_time_unix_nano
        assert abs(queue.end_time_unix_nano - prefill.start_time_unix_nano) < 1000
        assert abs(prefill.end_time_unix_nano - decode.start_time_unix_nano) < 1000
        assert decode.start_time_unix_nano < decode.end_time_unix_nano <= root.end_time_unix_nano + 1000
        biased = root.trace_id.hex() == TRACE
        assert ("logits_processor LogitBiasLogitsProcessor" in parts) is biased
        assert {span.trace_id for span in parts.values()} == {root.trace_id}


def test_attributes_say_what_the_request_was(collected: Collector) -> None:
    found = attributes_of(roots_of(collected)[0])
    assert found["gen_ai.usage.prompt_tokens"] > 0
    assert (found["gen_ai.usage.completion_tokens"], found["gen_ai.request.max_tokens"]) == (5, 5)
    assert found["gen_ai.response.finish_reason"] == "length"
    assert found["gen_ai.latency.e2e"] >= found["gen_ai.latency.time_to_first_token"] > 0


def test_a_processors_seconds_are_those_since_the_first_step() -> None:
    clocks = ProcessorClocks()
    for now, seconds in ((1.0, 0.5), (2.0, 0.75), (3.0, 1.75), (3.01, 1.85)):
        clocks.note(now, SchedulerStats(processors=[ProcessorStats("A", seconds=seconds)]))
    assert clocks.since(2.5, "A") == pytest.approx(1.1)
    assert clocks.since(0.0, "A") == pytest.approx(1.35)
    assert clocks.since(3.5, "A") == pytest.approx(0.1)
    assert clocks.since(2.5, "B") == 0.0


def test_a_new_workers_clocks_begin_at_zero() -> None:
    clocks = ProcessorClocks()
    for now, seconds in ((1.0, 5.0), (2.0, 0.25), (3.0, 0.5)):
        clocks.note(now, SchedulerStats(processors=[ProcessorStats("A", seconds=seconds)]))
    assert clocks.since(2.0, "A") == pytest.approx(0.25)


@pytest.mark.parametrize("given", ["collector:4317", "grpc://127.0.0.1:4317", ""])
def test_what_is_no_url_is_refused(given: str) -> None:
    with pytest.raises(ValueError, match=r"otlp_traces_endpoint: must be a URL such as http://"):
        EngineArgs("smollm2-135m", otlp_traces_endpoint=given)
