"""A trace, sent to a real server at its times."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tqdm import tqdm

from fastdeploy_lp.entrypoints.bench.http_client import Client
from fastdeploy_lp.entrypoints.bench.load import BenchmarkError, Sample, open_loop
from fastdeploy_lp.entrypoints.bench.serving import first_model
from simulation.trace import Arrival

PATH = "completions"
# Shorter loads show no progress.
SHOWN = 100
TIMEOUT = 300.0
# Tokens that every vocabulary of the models here has, the special ones left out.
TOKENS = range(1000, 30000)


def body_of(arrival: Arrival, model: str, salt: int) -> dict[str, Any]:
    """The request with random tokens; the tokens of a prefix are the same for the same salt."""
    prefix = random.Random(f"prefix {salt} {arrival.prefix}").choices(TOKENS, k=arrival.prefix_tokens)
    own = arrival.prompt_tokens - arrival.prefix_tokens
    return {
        "model": model,
        "prompt": prefix + random.Random(f"own {salt} {arrival.number}").choices(TOKENS, k=own),
        "max_tokens": arrival.output_tokens,
        "temperature": 0.0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def send_trace(url: str, trace: Sequence[Arrival], salt: int) -> tuple[list[Arrival], list[Sample]]:
    """The trace as it was sent, first request at 0, and what each request measured.

    Raises BenchmarkError when one of them fails or has another number of tokens than the trace says.
    """
    client = Client(url, {"Accept-Encoding": "identity"})
    try:
        model = await first_model(client)
        bodies = [body_of(arrival, model, salt) for arrival in trace]
        with tqdm(total=len(trace), unit="req", disable=len(trace) < SHOWN) as progress:
            samples = await open_loop(client, bodies, [arrival.time for arrival in trace], TIMEOUT, progress, path=PATH)
    finally:
        await client.close()
    for arrival, sample in zip(trace, samples, strict=True):
        if sample.error is not None:
            raise BenchmarkError(f"request {arrival.number}: {sample.error}")
        if (sample.prompt_tokens, sample.output_tokens) != (arrival.prompt_tokens, arrival.output_tokens):
            raise BenchmarkError(f"request {arrival.number}: has other numbers of tokens than the trace")
    began = min(sample.started for sample in samples)
    sent = [replace(arrival, time=sample.started - began) for arrival, sample in zip(trace, samples, strict=True)]
    return sorted(sent, key=lambda arrival: arrival.time), samples


async def send_in_turn(url: str, trace: Sequence[Arrival], salt: int) -> list[Sample]:
    """The requests one after the other, each when the last one has ended; raises BenchmarkError as `send_trace`."""
    samples: list[Sample] = []
    for arrival in trace:
        _, sent = await send_trace(url, [replace(arrival, time=0.0)], salt)
        samples += sent
    return samples
