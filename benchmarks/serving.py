"""Closed-loop load generator for any server with an OpenAI-compatible chat API.

Each concurrency level keeps that many streaming requests in flight until it has sent all of its requests, then
reports throughput and latency. ``benchmarks/README.md`` says what each number means.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from http import HTTPStatus
from pathlib import Path
from typing import Any

from http_client import Client, HTTPClientError
from tqdm import tqdm  # type: ignore[import-untyped, unused-ignore]

SCHEMA_VERSION = 1

# Thinking models stream their reasoning in a field of its own, and usage counts those tokens as output too.
TEXT_FIELDS = ("content", "reasoning_content", "reasoning")

PROMPTS = """
Explain why the sky looks blue at noon and red at sunset.
Write a short story about a lighthouse keeper who finds a message in a bottle.
What is the difference between a process and a thread?
List seven ways to reuse an old bicycle.
Give me a recipe for a lentil soup that takes less than half an hour.
Write a Python function that merges two sorted lists, and explain how it works.
Plan a three-day walking trip in the mountains for two beginners.
请用简单的语言解释一下什么是量子纠缠。
Describe the taste of a ripe mango to someone who has never eaten fruit.
A train covers 180 km in 2 hours 15 minutes. What is its mean speed? Show each step.
Écris un poème de douze vers sur la pluie en ville.
Invent a board game about bees: give its goal, its pieces and its rules.
Draft a polite e-mail asking a landlord to repair a leaking tap.
How do vaccines train the immune system?
"""


class BenchmarkError(Exception):
    """Something that keeps a request, or the whole run, from being measured."""


class SSEDecoder:
    """Incremental parser of server-sent events: feed it bytes as they arrive, get whole ``data`` payloads.

    It looks for line breaks in the bytes because a read may end inside a multi-byte character, and takes LF or CRLF
    only because ``str.splitlines`` would also break at U+2028 inside generated text.
    """

    def __init__(self) -> None:
        self._partial_line = b""
        self._data: list[str] = []

    def feed(self, block: bytes) -> Iterator[str]:
        """Yield the payload of each event that ``block`` completes."""
        *lines, self._partial_line = (self._partial_line + block).split(b"\n")
        for raw in lines:
            line = raw.removesuffix(b"\r").decode("utf-8")
            name, _, value = line.partition(":")
            if name == "data":
                self._data.append(value.removeprefix(" "))
            elif not line and self._data:
                payload = "\n".join(self._data)
                self._data.clear()
                yield payload


@dataclass
class Sample:
    """What one request measured; times are ``time.perf_counter`` seconds."""

    started: float
    ended: float = 0.0
    first_text: float | None = None
    last_text: float | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    text_chunks: int = 0
    error: str | None = None

    @property
    def latency(self) -> float:
        """Seconds from sending the request to the last byte of the response."""
        return self.ended - self.started

    @property
    def ttft(self) -> float | None:
        """Seconds from sending the request to its first text, or None where no text came."""
        return None if self.first_text is None else self.first_text - self.started

    @property
    def tpot(self) -> float | None:
        """Seconds per output token after the first, or None where the stream does not show it.

        Text that came all at once has no time between tokens: counting it as zero would flatter the server.
        """
        if self.first_text is None or self.last_text is None or self.output_tokens < 2:
            return None
        elapsed = self.last_text - self.first_text
        return elapsed / (self.output_tokens - 1) if elapsed > 0 else None


def percentile(values: Sequence[float], q: int) -> float:
    """Return the ``q``-th percentile (1 to 99), interpolating linearly between the two nearest ranks."""
    if len(values) == 1:
        return values[0]
    return statistics.quantiles(values, n=100, method="inclusive")[q - 1]


def distribution_ms(seconds: Sequence[float | None]) -> dict[str, float] | None:
    """Summarise the known values in milliseconds, or return None where there is none."""
    known = [1000 * value for value in seconds if value is not None]
    if not known:
        return None
    summary: dict[str, float] = {"count": len(known), "mean": statistics.fmean(known), "max": max(known)}
    return summary | {f"p{q}": percentile(known, q) for q in (50, 90, 99)}


def as_mapping(value: Any) -> dict[str, Any]:
    """Return ``value`` if it is a JSON object, else an empty one."""
    return value if isinstance(value, dict) else {}


def has_text(chunk: dict[str, Any]) -> bool:
    """Say whether a stream chunk carries generated text (the opening chunk often holds only the role)."""
    choices = chunk.get("choices")
    deltas = [as_mapping(as_mapping(choice).get("delta")) for choice in choices] if isinstance(choices, list) else []
    return any(delta.get(field) for delta in deltas for field in TEXT_FIELDS)


class ChatStream:
    """What the body of one streamed chat completion brings, noted in ``sample`` as it arrives."""

    def __init__(self, sample: Sample) -> None:
        self._sample = sample
        self._decoder = SSEDecoder()
        self._refusal = b""
        self._status = 0
        self._usage: dict[str, Any] = {}
        self._done = False

    def receive(self, status: int, body: bytes) -> None:
        """Take a piece of the body; raises BenchmarkError or ValueError for what can not be measured."""
        now = time.perf_counter()
        self._status = status
        if status != HTTPStatus.OK:
            self._refusal += body
            return
        for payload in self._decoder.feed(body):
            if payload.strip() == "[DONE]":
                self._done = True
                continue
            chunk = as_mapping(json.loads(payload))
            if chunk.get("error"):
                raise BenchmarkError(f"error in the stream: {payload}")
            if has_text(chunk):
                self._sample.first_text = self._sample.first_text or now
                self._sample.last_text = now
                self._sample.text_chunks += 1
            self._usage = as_mapping(chunk.get("usage")) or self._usage

    def finish(self) -> None:
        """Note the usage; raises BenchmarkError where the response was no whole stream."""
        if self._status != HTTPStatus.OK:
            text = self._refusal.decode("utf-8", errors="replace")
            raise BenchmarkError(f"HTTP {self._status}: {text}")
        if not self._done:
            raise BenchmarkError("the stream ended before [DONE]")
        usage, sample = self._usage, self._sample
        prompt_tokens, output_tokens = usage.get("prompt_tokens"), usage.get("completion_tokens")
        if not isinstance(prompt_tokens, int) or not isinstance(output_tokens, int):
            raise BenchmarkError(f"the stream has no usage to count its tokens by (got {usage or None})")
        sample.prompt_tokens, sample.output_tokens = prompt_tokens, output_tokens
        sample.cached_tokens = as_mapping(usage.get("prompt_tokens_details")).get("cached_tokens") or 0


async def exchange(client: Client, body: dict[str, Any], sample: Sample) -> None:
    """Stream one chat completion to its last byte and note times and usage in ``sample``."""
    stream = ChatStream(sample)
    await client.exchange("POST", "chat/completions", json.dumps(body).encode(), stream.receive)
    stream.finish()


async def send(client: Client, body: dict[str, Any], timeout: float) -> Sample:
    """Send one request; whatever goes wrong with it ends up in the sample's ``error``."""
    sample = Sample(started=time.perf_counter())
    try:
        await asyncio.wait_for(exchange(client, body, sample), timeout)
    except (BenchmarkError, HTTPClientError) as error:
        sample.error = " ".join(str(error).split())[:300]
    except asyncio.TimeoutError:
        sample.error = f"no complete response within {timeout:g} s"
    except (OSError, ValueError) as error:
        sample.error = f"{type(error).__name__}: {error}"
    sample.ended = time.perf_counter()
    return sample


async def closed_loop(
    client: Client, bodies: Sequence[dict[str, Any]], concurrency: int, timeout: float, progress: Any
) -> list[Sample]:
    """Send all ``bodies``, each of ``concurrency`` workers starting its next request as its last one ends."""
    queue = iter(bodies)
    samples: list[Sample] = []

    async def work() -> None:
        for body in queue:
            samples.append(await send(client, body, timeout))
            progress.update()

    await asyncio.gather(*(work() for _ in range(concurrency)))
    return samples


def summarise(samples: Sequence[Sample], full_length: int | None, warmup: Sequence[Sample] = ()) -> dict[str, Any]:
    """Turn one level's samples into its results; of failed requests only the errors and the wall time count.

    ``full_length`` is the output length that every request should have reached, None where any will do.
    """
    good = [sample for sample in samples if sample.error is None]
    errors = [sample.error for sample in (*warmup, *samples) if sample.error is not None]
    wall = max(sample.ended for sample in samples) - min(sample.started for sample in samples)
    output_tokens = sum(sample.output_tokens for sample in good)
    return {
        "completed": len(good),
        "errors": len(errors),
        "first_error": errors[0] if errors else None,
        "wall_s": wall,
        "mean_in_flight": sum(sample.latency for sample in samples) / wall,
        "output_tokens_per_s": output_tokens / wall,
        "requests_per_s": len(good) / wall,
        "output_tokens": output_tokens,
        "prompt_tokens": sum(sample.prompt_tokens for sample in good),
        "cached_prompt_tokens": sum(sample.cached_tokens for sample in good),
        "text_chunks": sum(sample.text_chunks for sample in good),
        "short_outputs": sum(full_length is not None and sample.output_tokens < full_length for sample in good),
        "ttft_ms": distribution_ms([sample.ttft for sample in good]),
        "tpot_ms": distribution_ms([sample.tpot for sample in good]),
        "latency_ms": distribution_ms([sample.latency for sample in good]),
    }


def render(levels: Sequence[dict[str, Any]]) -> str:
    """Lay the results out with one column per concurrency level, followed by notes on what went wrong."""
    counts = ("concurrency", "completed", "errors", "prompt_tokens", "output_tokens")
    rows: list[tuple[str, list[str]]] = []
    for key in (*counts, "wall_s", "mean_in_flight", "requests_per_s", "output_tokens_per_s"):
        rows.append((key, [f"{x[key]:.2f}" if isinstance(x[key], float) else str(x[key]) for x in levels]))
    for key in ("ttft_ms", "tpot_ms", "latency_ms"):
        for q in ("p50", "p90", "p99"):
            rows.append((f"{key} {q}", [f"{x[key][q]:.2f}" if x[key] else "-" for x in levels]))
    lines = [f"{label:<22}" + "".join(f"{cell:>12}" for cell in cells) for label, cells in rows]
    lines.insert(1, "-" * len(lines[0]))
    for level in levels:
        where = f"concurrency {level['concurrency']}:"
        if level["errors"]:
            lines.append(f"{where} {level['errors']} failed, the first with: {level['first_error']}")
        if level["short_outputs"]:
            lines.append(f"{where} {level['short_outputs']} outputs ended before max_tokens despite ignore_eos")
    return "\n".join(lines)


def positive_int(text: str) -> int:
    """Parse an argument that must be at least 1."""
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{value} is below 1")
    return value


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse and check the command line."""
    parser = argparse.ArgumentParser(description="Measure an OpenAI-compatible server under closed-loop load.")
    add = parser.add_argument
    add("--base-url", default="http://127.0.0.1:8180/v1", help="API root, with /v1 (default: %(default)s)")
    add("--model", help="model id (default: the first one the server lists)")
    add("--api-key", help="sent as a bearer token, never written to the results")
    add("--concurrency", type=positive_int, nargs="+", default=[1, 8, 32], metavar="N", help="levels (default: 1 8 32)")
    add("--requests-per-level", type=positive_int, metavar="N", help="default: 4 * concurrency, at least 8")
    add("--warmup", type=int, default=2, metavar="N", help="uncounted requests before each level (default: 2)")
    add("--max-tokens", type=positive_int, default=128, metavar="N", help="output length (default: 128)")
    add("--ignore-eos", action=argparse.BooleanOptionalAction, default=True, help="ask for outputs of full length")
    add("--temperature", type=float, default=0.0, help="default: 0")
    add("--extra-body", type=json.loads, default={}, metavar="JSON", help="object merged into each request body")
    add("--prompt-file", help="one prompt a line (default: a short built-in list)")
    add("--timeout", type=float, default=600.0, metavar="S", help="seconds for one whole request (default: 600)")
    add("--json", type=Path, metavar="FILE", help="write the results here")
    add("--smoke", action="store_true", help="tiny run: concurrency 1 2, 4 requests, 8 tokens, unless given")
    if parser.parse_args(argv).smoke:
        parser.set_defaults(concurrency=[1, 2], requests_per_level=4, max_tokens=8)
    args = parser.parse_args(argv)
    if args.requests_per_level is not None and args.requests_per_level < max(args.concurrency):
        parser.error("--requests-per-level is below the highest concurrency, which would never be reached")
    if args.warmup < 0 or not isinstance(args.extra_body, dict):
        parser.error("--warmup must not be negative, and --extra-body must be a JSON object")
    if args.json is not None and not args.json.parent.is_dir():
        parser.error(f"--json: no directory {args.json.parent}")
    return args


async def first_model(client: Client) -> str:
    """Ask the server which models it serves and take the first."""
    text = bytearray()

    def receive(status: int, body: bytes) -> None:
        text.extend(body)
        if status != HTTPStatus.OK:
            raise BenchmarkError(f"HTTP {status}")

    try:
        await client.exchange("GET", "models", b"", receive)
        return str(json.loads(text)["data"][0]["id"])
    except (BenchmarkError, HTTPClientError, OSError, ValueError, LookupError, TypeError) as error:
        raise BenchmarkError(f"cannot get a model from {client.base_url}/models: {error!r}") from error


async def benchmark(args: argparse.Namespace) -> dict[str, Any]:
    """Run every level in turn and return the whole report."""
    text = Path(args.prompt_file).read_text(encoding="utf-8") if args.prompt_file else PROMPTS
    prompts = [line.strip() for line in text.split("\n") if line.strip()]
    if not prompts:
        raise BenchmarkError("the prompt file holds no prompt")
    common = {"max_tokens": args.max_tokens, "temperature": args.temperature, "stream": True}
    common |= {"stream_options": {"include_usage": True}} | ({"ignore_eos": True} if args.ignore_eos else {})
    common |= args.extra_body
    headers = {"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {args.api_key}"} if args.api_key else {})
    levels: list[dict[str, Any]] = []
    client = Client(args.base_url.rstrip("/"), headers)
    try:
        model = args.model or await first_model(client)
        bodies = [{"model": model, "messages": [{"role": "user", "content": prompt}]} | common for prompt in prompts]
        for concurrency in args.concurrency:
            count = args.requests_per_level or max(8, 4 * concurrency)
            plan = [bodies[i % len(bodies)] for i in range(max(args.warmup, count))]
            with tqdm(total=args.warmup + count, desc=f"concurrency {concurrency}", unit="req") as progress:
                warmup = await closed_loop(client, plan[: args.warmup], concurrency, args.timeout, progress)
                cpu_before = time.process_time()
                samples = await closed_loop(client, plan[:count], concurrency, args.timeout, progress)
                cpu_seconds = time.process_time() - cpu_before
            full_length = common["max_tokens"] if common.get("ignore_eos") else None
            level = {"concurrency": concurrency, "requests": count} | summarise(samples, full_length, warmup)
            levels.append(level | {"client_cpu_share": cpu_seconds / level["wall_s"]})
    finally:
        await client.close()
    return {
        "schema_version": SCHEMA_VERSION,
        "timestamp": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "model": model,
        "arguments": {key: value for key, value in vars(args).items() if key not in ("api_key", "json")},
        "levels": levels,
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return 1 when any request failed."""
    args = parse_arguments(argv)
    try:
        report = asyncio.run(benchmark(args))
    except (BenchmarkError, HTTPClientError, OSError, UnicodeDecodeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{report['model']} at {args.base_url}\n\n{render(report['levels'])}")
    if args.json is not None:
        args.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return int(any(level["errors"] for level in report["levels"]))


if __name__ == "__main__":
    sys.exit(main())
