"""Closed-loop and open-loop load of streaming completions, with measurements of each request."""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from itertools import accumulate
from typing import Any

from fastdeploy_lp.entrypoints.bench.http_client import Client, HTTPClientError

# Reasoning models stream their reasoning in a separate field, and usage counts those tokens as output too.
TEXT_FIELDS = ("content", "reasoning_content", "reasoning")


class BenchmarkError(Exception):
    """An error that prevents the measurement of a request or of the whole run."""


class SSEDecoder:
    """Incremental parser of server-sent events: takes bytes as they arrive and yields complete ``data`` payloads.

    Searches line breaks in the bytes, because a read may end inside a multi-byte character. Accepts only LF and CRLF,
    because ``str.splitlines`` would also break at U+2028 inside generated text.
    """

    def __init__(self) -> None:
        self._partial_line = b""
        self._data: list[str] = []

    def feed(self, block: bytes) -> Iterator[str]:
        """Yields the payload of each event that ``block`` completes."""
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
    """Measurements of one request; times are ``time.perf_counter`` seconds."""

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
        """Seconds from sending the request to its first text, or None without text."""
        return None if self.first_text is None else self.first_text - self.started

    @property
    def tpot(self) -> float | None:
        """Seconds per output token after the first, or None if the stream does not show it.

        Text that arrived in one piece has no time between tokens: counting it as zero would flatter the server.
        """
        if self.first_text is None or self.last_text is None or self.output_tokens < 2:
            return None
        elapsed = self.last_text - self.first_text
        return elapsed / (self.output_tokens - 1) if elapsed > 0 else None


def as_mapping(value: Any) -> dict[str, Any]:
    """Returns ``value`` if it is a JSON object, else an empty one."""
    return value if isinstance(value, dict) else {}


def has_text(chunk: dict[str, Any]) -> bool:
    """True if a stream chunk has generated text (a chat's first chunk often has only the role)."""
    listed = chunk.get("choices")
    choices = [as_mapping(choice) for choice in listed] if isinstance(listed, list) else []
    deltas = [as_mapping(choice.get("delta")) for choice in choices]
    return any(choice.get("text") for choice in choices) or any(
        delta.get(field) for delta in deltas for field in TEXT_FIELDS
    )


class ChatStream:
    """Receives the body of one streamed chat completion and records times and usage in ``sample``."""

    def __init__(self, sample: Sample) -> None:
        self._sample = sample
        self._decoder = SSEDecoder()
        self._refusal = b""
        self._status = 0
        self._usage: dict[str, Any] = {}
        self._done = False

    def receive(self, status: int, body: bytes) -> None:
        """Reads a piece of the body; raises BenchmarkError or ValueError if it cannot be measured."""
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
        """Records the usage; raises BenchmarkError if the response is not a complete stream."""
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


async def exchange(client: Client, body: dict[str, Any], sample: Sample, path: str) -> None:
    """Streams one completion to its last byte and records times and usage in ``sample``."""
    stream = ChatStream(sample)
    await client.exchange("POST", path, json.dumps(body).encode(), stream.receive)
    stream.finish()


async def send(client: Client, body: dict[str, Any], timeout: float, path: str = "chat/completions") -> Sample:
    """Sends one request and returns its sample; a failure becomes the sample's ``error``."""
    sample = Sample(started=time.perf_counter())
    try:
        await asyncio.wait_for(exchange(client, body, sample, path), timeout)
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
    """Sends all ``bodies``; each of ``concurrency`` tasks starts its next request when its last one ends."""
    queue = iter(bodies)
    samples: list[Sample] = []

    async def work() -> None:
        for body in queue:
            samples.append(await send(client, body, timeout))
            progress.update()

    await asyncio.gather(*(work() for _ in range(concurrency)))
    return samples


async def open_loop(
    client: Client,
    bodies: Sequence[dict[str, Any]],
    times: Sequence[float],
    timeout: float,
    progress: Any,
    path: str = "chat/completions",
) -> list[Sample]:
    """Sends each body at its time, in seconds from now, without a concurrency limit; returns samples in the same order.

    Raises ValueError if the numbers of bodies and times differ.
    """
    if len(bodies) != len(times):
        raise ValueError("times: must be one for each body")
    began = time.perf_counter()

    async def one(body: dict[str, Any], at: float) -> Sample:
        await asyncio.sleep(at - (time.perf_counter() - began))
        sample = await send(client, body, timeout, path)
        progress.update()
        return sample

    return list(await asyncio.gather(*(one(body, at) for body, at in zip(bodies, times, strict=True))))


def poisson_times(count: int, rate: float, seed: int) -> list[float]:
    """Returns ``count`` arrival times of a Poisson process with ``rate`` requests per second."""
    draw = random.Random(seed)
    return list(accumulate(draw.expovariate(rate) for _ in range(count)))


def percentile(values: Sequence[float], q: int) -> float:
    """Returns the ``q``-th percentile (1 to 99), interpolating linearly between the two nearest ranks."""
    if len(values) == 1:
        return values[0]
    return statistics.quantiles(values, n=100, method="inclusive")[q - 1]


def distribution_ms(seconds: Sequence[float | None]) -> dict[str, float] | None:
    """Returns statistics of the known values in milliseconds, or None if there are none."""
    known = [1000 * value for value in seconds if value is not None]
    if not known:
        return None
    summary: dict[str, float] = {"count": len(known), "mean": statistics.fmean(known), "max": max(known)}
    return summary | {f"p{q}": percentile(known, q) for q in (50, 90, 99)}


def summarise(samples: Sequence[Sample], full_length: int | None, warmup: Sequence[Sample] = ()) -> dict[str, Any]:
    """Returns the results of one level's samples; failed requests count only as errors and in the times.

    ``full_length``: the output length that every request should reach, or None for any length.
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
    """Returns a table with one column per level, followed by notes on failures and short outputs."""
    level_name = "request_rate" if "request_rate" in levels[0] else "concurrency"
    counts = (level_name, "completed", "errors", "prompt_tokens", "output_tokens")
    rows: list[tuple[str, list[str]]] = []
    for key in (*counts, "wall_s", "mean_in_flight", "requests_per_s", "output_tokens_per_s"):
        rows.append((key, [f"{x[key]:.2f}" if isinstance(x[key], float) else str(x[key]) for x in levels]))
    for key in ("ttft_ms", "tpot_ms", "latency_ms"):
        for q in ("p50", "p90", "p99"):
            rows.append((f"{key} {q}", [f"{x[key][q]:.2f}" if x[key] else "-" for x in levels]))
    lines = [f"{label:<22}" + "".join(f"{cell:>12}" for cell in cells) for label, cells in rows]
    lines.insert(1, "-" * len(lines[0]))
    for level in levels:
        where = f"{level_name} {level[level_name]}:"
        if level["errors"]:
            lines.append(f"{where} {level['errors']} failed, the first with: {level['first_error']}")
        if level["short_outputs"]:
            lines.append(f"{where} {level['short_outputs']} outputs ended before max_tokens despite ignore_eos")
    return "\n".join(lines)
