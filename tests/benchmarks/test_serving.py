"""Tests of the load generator: run as a program against a small real HTTP server, and its arithmetic alone."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from fastdeploy_lp.entrypoints.bench.load import Sample, SSEDecoder, has_text, percentile, poisson_times, summarise
from fastdeploy_lp.entrypoints.bench.serving import main, parse_arguments

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "serving.py"
USAGE = {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}
DONE = b"data: [DONE]\n\n"


def event(**fields: Any) -> bytes:
    """Build one server-sent event."""
    return b"data: " + json.dumps(fields, ensure_ascii=False).encode() + b"\n\n"


def text_event(text: str) -> bytes:
    """Build the event of one chunk with generated text."""
    return event(choices=[{"index": 0, "delta": {"content": text}}], usage=None)


ROLE = event(choices=[{"index": 0, "delta": {"role": "assistant", "content": ""}}])
FINISH = event(choices=[{"index": 0, "delta": {}, "finish_reason": "length"}])
CANNED = (ROLE, text_event("one two "), text_event("three four five "), text_event("six seven"), FINISH)
ANSWER = (*CANNED, event(choices=[], usage=USAGE), DONE)


async def play(parts: Sequence[bytes]) -> AsyncIterator[bytes]:
    """Stream canned parts as fast as the client reads them."""
    for part in parts:
        yield part


@dataclass
class StandIn:
    """An OpenAI-compatible server that streams what it is told to and notes what it is asked."""

    stream: Callable[[], AsyncIterator[bytes]]
    refusal: Response | None = None
    wave: int = 1
    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    authorization: set[str | None] = field(default_factory=set)
    in_flight: int = 0
    peak: int = 0
    arrived: int = 0
    gate: asyncio.Event = field(default_factory=asyncio.Event)

    async def meet(self) -> None:
        """Hold each request until ``wave`` of them are here, so that fewer in flight would never be answered."""
        gate = self.gate
        self.arrived += 1
        if self.arrived % self.wave == 0:
            self.gate = asyncio.Event()
            gate.set()
        await gate.wait()

    async def chat(self, request: Request) -> Response:
        """Answer POST /v1/chat/completions."""
        self.bodies.append(await request.json())
        self.authorization.add(request.headers.get("authorization"))
        if self.refusal is not None:
            return self.refusal
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)

        async def stream() -> AsyncIterator[bytes]:
            # The last byte of the response leaves after this generator ends, so a client that waits for it cannot
            # be counted twice.
            try:
                await self.meet()
                async for part in self.stream():
                    yield part
            finally:
                self.in_flight -= 1

        return StreamingResponse(stream(), media_type="text/event-stream")

    async def models(self) -> Response:
        """Answer GET /v1/models."""
        return JSONResponse({"object": "list", "data": [{"id": "first-model"}, {"id": "second-model"}]})

    @contextmanager
    def running(self) -> Iterator[StandIn]:
        """Serve on a free port; the socket listens at once, so that a client may connect before the loop runs."""
        app = FastAPI()
        app.add_api_route("/v1/chat/completions", self.chat, methods=["POST"], response_model=None)
        app.add_api_route("/v1/models", self.models, methods=["GET"], response_model=None)
        listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        server = uvicorn.Server(uvicorn.Config(app, ws="none", lifespan="off", log_level="warning"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield self
        finally:
            server.should_exit = True
            thread.join(timeout=30)
            listener.close()
        assert not thread.is_alive()


def stand_in(*parts: bytes, **options: Any) -> AbstractContextManager[StandIn]:
    """Start a server that answers every request with ``parts``."""
    return StandIn(stream=lambda: play(parts), **options).running()


def run(server: StandIn, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the load generator as a user would, with warnings as errors and a proxy in the environment that is dead."""
    return subprocess.run(
        [sys.executable, "-W", "error", str(SCRIPT), "--base-url", server.url, *arguments],
        capture_output=True,
        encoding="utf-8",
        env=os.environ | {"HTTP_PROXY": "http://127.0.0.1:9", "PYTHONIOENCODING": "utf-8"},
        timeout=60,
        check=False,
    )


def run_small(server: StandIn, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run two requests, one at a time, without warm-up."""
    return run(server, "--concurrency", "1", "--requests-per-level", "2", "--warmup", "0", *arguments)


def test_report(tmp_path: Path) -> None:
    """Tokens come from usage (7), not from the three text chunks, and the JSON file holds every number."""
    results = tmp_path / "results.json"
    with stand_in(*ANSWER) as server:
        done = run(
            server,
            *("--concurrency", "1", "2", "--requests-per-level", "4", "--warmup", "1", "--max-tokens", "7"),
            *("--api-key", "sesame-opens", "--extra-body", '{"top_p": 0.5, "temperature": 0.25}'),
            *("--json", str(results)),
        )
    assert done.returncode == 0, done.stderr
    assert "concurrency 2: 100%" in done.stderr
    assert len(server.bodies) == 2 * (1 + 4)
    assert server.authorization == {"Bearer sesame-opens"}
    body = dict(server.bodies[0])
    assert [message["role"] for message in body.pop("messages")] == ["user"]
    assert body == {
        "model": "first-model",
        "max_tokens": 7,
        "temperature": 0.25,
        "top_p": 0.5,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
    }
    assert len({sent["messages"][0]["content"] for sent in server.bodies}) == 4

    written = results.read_text(encoding="utf-8")
    assert "sesame" not in written + done.stdout + done.stderr
    report = json.loads(written)
    assert report["schema_version"] == 1
    assert report["timestamp"].endswith("+00:00")
    assert report["model"] == "first-model"
    assert report["arguments"]["concurrency"] == [1, 2]
    assert report["arguments"]["extra_body"] == {"top_p": 0.5, "temperature": 0.25}
    assert [level["concurrency"] for level in report["levels"]] == [1, 2]
    for level in report["levels"]:
        assert (level["requests"], level["completed"], level["errors"], level["first_error"]) == (4, 4, 0, None)
        assert (level["output_tokens"], level["prompt_tokens"], level["text_chunks"]) == (28, 20, 12)
        assert level["short_outputs"] == 0
        assert level["output_tokens_per_s"] == pytest.approx(28 / level["wall_s"])
        assert level["requests_per_s"] == pytest.approx(4 / level["wall_s"])
        assert 0 < level["mean_in_flight"] <= level["concurrency"]
        assert level["ttft_ms"]["count"] == level["latency_ms"]["count"] == 4
        assert 0 < level["ttft_ms"]["p50"] <= level["latency_ms"]["p99"] <= level["latency_ms"]["max"]
    rows = {line[:22].strip(): line[22:].split() for line in done.stdout.splitlines()}
    assert rows["concurrency"] == ["1", "2"]
    assert rows["output_tokens"] == ["28", "28"]
    assert rows["output_tokens_per_s"] == [f"{level['output_tokens_per_s']:.2f}" for level in report["levels"]]
    assert rows["ttft_ms p90"] == [f"{level['ttft_ms']['p90']:.2f}" for level in report["levels"]]


@pytest.mark.parametrize("concurrency", [1, 3])
def test_exactly_the_level_is_in_flight(concurrency: int) -> None:
    """The server answers only full waves, which fewer in flight would never make, and sees no more than the level."""
    with stand_in(*ANSWER, wave=concurrency) as server:
        requests = 4 * concurrency
        done = run(
            server,
            *("--concurrency", str(concurrency), "--requests-per-level", str(requests)),
            *("--warmup", "0", "--timeout", "30"),
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert server.peak == concurrency
    assert len(server.bodies) == requests


def test_a_rate_waits_for_nobody(tmp_path: Path) -> None:
    """The server answers nobody before the last request is there: all of them are sent whatever is in flight."""
    results = tmp_path / "results.json"
    with stand_in(*ANSWER, wave=6) as server:
        done = run(
            server,
            *("--request-rate", "100", "--requests-per-level", "6", "--warmup", "0"),
            *("--timeout", "30", "--json", str(results)),
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert server.peak == len(server.bodies) == 6
    (level,) = json.loads(results.read_text(encoding="utf-8"))["levels"]
    assert (level["request_rate"], level["completed"]) == (100.0, 6)
    assert "concurrency" not in level
    assert "request_rate" in done.stdout


@pytest.mark.parametrize("rate", ["0", "-1", "inf", "nan"])
def test_a_rate_is_a_number_above_0(rate: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Anything else is refused by the option's name."""
    with pytest.raises(SystemExit):
        parse_arguments([f"--request-rate={rate}"])
    assert "--request-rate" in capsys.readouterr().err


def test_times_of_a_rate() -> None:
    """In order, on average at the rate, and the same for the same seed."""
    times = poisson_times(20_000, 4.0, seed=1)
    assert times == sorted(times) == poisson_times(20_000, 4.0, seed=1) != poisson_times(20_000, 4.0, seed=2)
    assert times[-1] == pytest.approx(5000, rel=0.05)


def test_text_of_both_kinds_of_completions() -> None:
    """Chats have it in a delta, other completions beside it."""
    assert has_text({"choices": [{"text": "a"}]})
    assert not has_text({"choices": [{"text": ""}, {"finish_reason": "stop"}]})


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ((*CANNED, DONE), "no usage"),
        ((*CANNED, event(choices=[], usage={"prompt_tokens": 5}), DONE), "no usage"),
        ((*CANNED, event(choices=[], usage=USAGE)), "ended before [DONE]"),
        ((ROLE, event(error={"message": "out of blocks"})), "out of blocks"),
        ((ROLE, b"data: {broken\n\n", DONE), "JSONDecodeError"),
        ((ROLE, b"data: \xff\n\n", DONE), "UnicodeDecodeError"),
    ],
)
def test_bad_stream_fails_the_run(parts: tuple[bytes, ...], message: str, tmp_path: Path) -> None:
    """A stream that cannot be measured counts as an error with its message and leaves no tokens in the results."""
    results = tmp_path / "results.json"
    with stand_in(*parts) as server:
        done = run_small(server, "--json", str(results))
    assert done.returncode == 1
    assert message in done.stdout
    (level,) = json.loads(results.read_text(encoding="utf-8"))["levels"]
    assert (level["completed"], level["errors"], level["output_tokens"]) == (0, 2, 0)
    assert message in level["first_error"]
    assert level["ttft_ms"] is level["tpot_ms"] is level["latency_ms"] is None


def test_http_error_shows_the_message() -> None:
    """The reason that the server gives for a refusal reaches the user, and a failed warm-up counts too."""
    refusal = JSONResponse({"error": {"message": "max_tokens is\ntoo large"}}, status_code=400)
    with stand_in(refusal=refusal) as server:
        done = run(server, "--concurrency", "2", "--requests-per-level", "4", "--warmup", "1")
    assert done.returncode == 1
    assert "concurrency 2: 5 failed, the first with: HTTP 400" in done.stdout
    assert "too large" in done.stdout


def test_no_server() -> None:
    """A server that is not there ends the run with one line, not with a traceback."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    done = run(StandIn(stream=lambda: play(()), url=url))
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: base_url: no server listens at {url} (Connection refused); start one in ")
    assert "Traceback" not in done.stderr


def test_prompts_model_and_eos(tmp_path: Path) -> None:
    """Prompts come from the file in order, blank lines left out, and options reach the body."""
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("première\n\n  第二  \n", encoding="utf-8")
    with stand_in(*ANSWER) as server:
        done = run_small(server, "--prompt-file", str(prompts), "--model", "chosen", "--no-ignore-eos")
    assert done.returncode == 0, done.stderr
    assert [body["messages"][0]["content"] for body in server.bodies] == ["première", "第二"]
    assert {body["model"] for body in server.bodies} == {"chosen"}
    assert not any("ignore_eos" in body for body in server.bodies)
    assert "ended before max_tokens" not in done.stdout


def test_short_outputs_are_pointed_out() -> None:
    """Outputs of 7 tokens where 128 were asked for mean that ignore_eos had no effect: runs would not compare."""
    with stand_in(*ANSWER) as server:
        done = run_small(server)
    assert done.returncode == 0, done.stderr
    assert "concurrency 1: 2 outputs ended before max_tokens despite ignore_eos" in done.stdout


def test_smoke_and_its_overrides() -> None:
    """--smoke changes defaults only: an option given next to it still counts."""
    with stand_in(*ANSWER) as server:
        done = run(server, "--smoke", "--warmup", "0", "--max-tokens", "3")
    assert done.returncode == 0, done.stderr
    assert len(server.bodies) == 2 * 4
    assert {body["max_tokens"] for body in server.bodies} == {3}
    args = parse_arguments(["--smoke"])
    assert (args.concurrency, args.requests_per_level, args.max_tokens) == ([1, 2], 4, 8)


def test_any_byte_may_end_a_read() -> None:
    """Each byte comes as an HTTP chunk of its own, so characters, lines and events are all split."""
    stream = b"".join((ROLE, text_event("日本 🙂 \u2028 é"), FINISH, event(choices=[], usage=USAGE), DONE))
    with stand_in(*(bytes([byte]) for byte in stream)) as server:
        done = run_small(server, "--max-tokens", "7")
    assert done.returncode == 0, done.stdout
    assert "failed" not in done.stdout


def test_times_follow_the_text(tmp_path: Path) -> None:
    """The chunk that holds only the role is no first token, and the time per token is over usage, not chunks."""
    before_text, between_chunks = 0.06, 0.03

    async def slow() -> AsyncIterator[bytes]:
        # The pauses stand for the time that a model computes.
        yield ROLE
        await asyncio.sleep(before_text)
        yield text_event("one two three ")
        await asyncio.sleep(between_chunks)
        yield text_event("four five six seven")
        yield event(choices=[], usage=USAGE)
        yield DONE

    results = tmp_path / "results.json"
    with StandIn(stream=slow).running() as server:
        done = run_small(server, "--json", str(results))
    assert done.returncode == 0, done.stderr
    (level,) = json.loads(results.read_text(encoding="utf-8"))["levels"]
    assert level["ttft_ms"]["p50"] >= 0.95 * 1000 * before_text
    assert level["latency_ms"]["p50"] >= level["ttft_ms"]["p50"] + 6 * level["tpot_ms"]["p50"] * 0.95
    assert level["tpot_ms"]["count"] == 2


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_decoder_does_not_depend_on_the_reads(size: int) -> None:
    """Line ends, comments, other fields, missing spaces and several data lines come out the same at any split."""
    stream = (
        ': ping\r\n\r\ndata: {"t": "é世🙂\u2028"}\r\n\r\nid: 4\ndata:tight\n\ndata: a\ndata: b\n\n\ndata: rest'.encode()
    )
    decoder = SSEDecoder()
    payloads = [out for i in range(0, len(stream), size) for out in decoder.feed(stream[i : i + size])]
    assert payloads == ['{"t": "é世🙂\u2028"}', "tight", "a\nb"]


def test_percentile() -> None:
    """Percentiles interpolate between ranks, whatever the order of the values."""
    hundred_and_one = [float(value) for value in range(100, -1, -1)]
    assert [percentile(hundred_and_one, q) for q in (1, 50, 90, 99)] == [1, 50, 90, 99]
    assert percentile([4.0, 1.0, 3.0, 2.0], 50) == 2.5
    assert percentile([10.0, 20.0], 90) == pytest.approx(19)
    assert percentile([10.0, 20.0], 99) == pytest.approx(19.9)
    assert percentile([7.0], 99) == 7
    with pytest.raises(ValueError, match="data point"):
        percentile([], 50)


def test_sample_times() -> None:
    """Times are undefined, not zero, where the stream does not show them."""
    sample = Sample(started=10.0, first_text=10.5, last_text=12.5, ended=13.0, output_tokens=5)
    assert (sample.ttft, sample.tpot, sample.latency) == (0.5, 0.5, 3.0)
    at_once = Sample(started=10.0, first_text=10.5, last_text=10.5, ended=13.0, output_tokens=5)
    assert (at_once.ttft, at_once.tpot) == (0.5, None)
    single = Sample(started=10.0, first_text=10.5, last_text=10.6, ended=13.0, output_tokens=1)
    assert single.tpot is None
    silent = Sample(started=10.0, ended=13.0, output_tokens=5)
    assert (silent.ttft, silent.tpot) == (None, None)


def test_summary_leaves_failures_out_of_the_rates() -> None:
    """A failed request adds no tokens and no latency, but the time it took is part of the wall time."""
    good = Sample(started=0.0, first_text=1.0, last_text=2.0, ended=2.0, prompt_tokens=3, output_tokens=8)
    bad = Sample(started=1.0, first_text=2.0, last_text=3.0, ended=4.0, output_tokens=0, error="cut off")
    level = summarise([good, bad], 10)
    assert (level["wall_s"], level["output_tokens_per_s"], level["requests_per_s"]) == (4.0, 2.0, 0.25)
    assert (level["completed"], level["errors"], level["first_error"]) == (1, 1, "cut off")
    assert level["mean_in_flight"] == (2.0 + 3.0) / 4.0
    assert level["latency_ms"]["max"] == 2000
    assert level["short_outputs"] == 1


@pytest.mark.parametrize(
    ("delta", "expected"),
    [
        ({"content": "x"}, True),
        ({"content": None, "reasoning_content": "x"}, True),
        ({"reasoning": "x"}, True),
        ({"role": "assistant", "content": ""}, False),
        ({}, False),
        (None, False),
    ],
)
def test_has_text(delta: dict[str, Any] | None, expected: bool) -> None:
    """Only generated text counts as the first token, the text of a reasoning model's thoughts included."""
    assert has_text({"choices": [{"index": 0, "delta": delta}]}) is expected


def test_has_text_without_choices() -> None:
    """The usage chunk holds no choice."""
    assert not has_text({"choices": []})
    assert not has_text({"choices": None})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--concurrency", "0"], "0 is below 1"),
        (["--concurrency", "4", "--requests-per-level", "3"], "would never be reached"),
        (["--warmup", "-1"], "--warmup must not be negative"),
        (["--extra-body", "[1]"], "must be a JSON object"),
        (["--extra-body", "{"], "--extra-body"),
        (["--json", "no-such-folder/results.json"], "no directory no-such-folder"),
    ],
)
def test_bad_arguments(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Arguments that cannot work end the run before any request, with status 2."""
    with pytest.raises(SystemExit) as error:
        main(arguments)
    assert error.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("content", [None, b"\n \n", b"\xff\n"])
def test_bad_prompt_file(content: bytes | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A prompt file that is missing, empty or not UTF-8 is an error that says so."""
    prompts = tmp_path / "prompts.txt"
    if content is not None:
        prompts.write_bytes(content)
    assert main(["--prompt-file", str(prompts)]) == 1
    assert capsys.readouterr().err.startswith("error: ")
