"""Load generator for any server with an OpenAI-compatible chat API.

Each concurrency level keeps that many streaming requests in flight until it has sent all of its requests, then
reports throughput and latency. With request rates, each level sends its requests at random times (Poisson) instead,
without a concurrency limit. ``benchmarks/README.md`` defines each number. The module uses no other part of this
project than this folder, the parser of options and the server's address, so that it measures every server the same way.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from http import HTTPStatus
from pathlib import Path
from typing import Any

from tqdm import tqdm

from fastdeploy_lp.entrypoints.bench.http_client import Client, HTTPClientError
from fastdeploy_lp.entrypoints.bench.load import (
    BenchmarkError,
    closed_loop,
    open_loop,
    poisson_times,
    render,
    summarise,
)
from fastdeploy_lp.entrypoints.server_address import EXAMPLE, ServerAddress
from fastdeploy_lp.entrypoints.usage import CommandParser

SCHEMA_VERSION = 1

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


def positive_int(text: str) -> int:
    """Parses an argument that must be at least 1."""
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{value} is below 1")
    return value


def positive_float(text: str) -> float:
    """Parses an argument that must be a number above 0."""
    if not 0 < (value := float(text)) < float("inf"):
        raise argparse.ArgumentTypeError(f"{value:g} is not above 0")
    return value


def parse_arguments(argv: Sequence[str] | None, prog: str | None = None) -> argparse.Namespace:
    """Parses and checks the command line."""
    parser = CommandParser(
        prog=prog, description="Measure an OpenAI-compatible server under closed-loop or open-loop load."
    )
    add = parser.add_argument
    add("--base-url", default=EXAMPLE, help="API root, with /v1 (default: %(default)s)")
    add("--model", help="model id (default: the first one the server lists)")
    add("--api-key", help="sent as a bearer token, never written to the results")
    add("--concurrency", type=positive_int, nargs="+", default=[1, 8, 32], metavar="N", help="levels (default: 1 8 32)")
    add("--request-rate", type=positive_float, nargs="+", metavar="R", help="open loop: requests a second, by level")
    add("--seed", type=int, default=0, metavar="N", help="of the times at which an open loop sends (default: 0)")
    add(
        "--requests-per-level", type=positive_int, metavar="N", help="default: 4 * level, or 30 s of a rate, at least 8"
    )
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
    closed = args.request_rate is None
    if closed and args.requests_per_level is not None and args.requests_per_level < max(args.concurrency):
        parser.error("--requests-per-level is below the highest concurrency, which would never be reached")
    if args.warmup < 0 or not isinstance(args.extra_body, dict):
        parser.error("--warmup must not be negative, and --extra-body must be a JSON object")
    if args.json is not None and not args.json.parent.is_dir():
        parser.error(f"--json: no directory {args.json.parent}")
    return args


async def first_model(client: Client) -> str:
    """Returns the first model that the server lists; raises BenchmarkError."""
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
    """Runs all levels in turn and returns the report."""
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
        for level in args.request_rate or args.concurrency:
            levels.append(await _measure_level(args, client, bodies, level))
    finally:
        await client.close()
    return {
        "schema_version": SCHEMA_VERSION,
        "timestamp": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "model": model,
        "arguments": {key: value for key, value in vars(args).items() if key not in ("api_key", "json")},
        "levels": levels,
    }


async def _measure_level(
    args: argparse.Namespace, client: Client, bodies: Sequence[dict[str, Any]], level: float
) -> dict[str, Any]:
    """Runs one level, a concurrency or a rate, and returns its results."""
    is_open = args.request_rate is not None
    name = "request_rate" if is_open else "concurrency"
    count = args.requests_per_level or max(8, round((30 if is_open else 4) * level))
    plan = [bodies[i % len(bodies)] for i in range(max(args.warmup, count))]
    with tqdm(total=args.warmup + count, desc=f"{name.replace('_', ' ')} {level:g}", unit="req") as progress:
        at_once = 1 if is_open else int(level)
        warmup = await closed_loop(client, plan[: args.warmup], at_once, args.timeout, progress)
        cpu_before = time.process_time()
        if is_open:
            times = poisson_times(count, level, args.seed)
            samples = await open_loop(client, plan[:count], times, args.timeout, progress)
        else:
            samples = await closed_loop(client, plan[:count], at_once, args.timeout, progress)
        cpu_seconds = time.process_time() - cpu_before
    full_length = bodies[0]["max_tokens"] if bodies[0].get("ignore_eos") else None
    results = summarise(samples, full_length, warmup)
    return {name: level, "requests": count} | results | {"client_cpu_share": cpu_seconds / results["wall_s"]}


def main(argv: Sequence[str] | None = None, prog: str | None = None) -> int:
    """Runs the command line; returns 1 if any request failed."""
    args = parse_arguments(argv, prog)
    try:
        ServerAddress(args.base_url, "base_url").require_listening()
        report = asyncio.run(benchmark(args))
    except (BenchmarkError, HTTPClientError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{report['model']} at {args.base_url}\n\n{render(report['levels'])}")
    if args.json is not None:
        args.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return int(any(level["errors"] for level in report["levels"]))
