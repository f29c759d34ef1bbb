"""Thousands of random requests, some of them aborted, on a real server: does it leak, lose or starve anything?

``benchmarks/README.md`` says what is measured; ``--help`` lists the options.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import random
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any

from peers.contender import Contender, our_contender
from peers.server_process import ServerError, ServerProcess
from soak_memory import MEMORY_FIELDS, Point, growth_mb, parse_metrics, take_point, worker_pid
from soak_plot import render_svg
from soak_requests import WORDS, Plan, chat_body, random_plans

from fastdeploy_lp.entrypoints.bench.http_client import Client, HTTPClientError
from fastdeploy_lp.entrypoints.bench.load import BenchmarkError, ChatStream, Sample, distribution_ms
from fastdeploy_lp.entrypoints.bench.serving import positive_int

PRECISION = "w8a16"
BLOCKS = 600
POINTS = 50
DRAIN_SECONDS, POLL_SECONDS = 60.0, 0.1
BURST_REQUESTS, BURST_SLOTS, BURST_TOKENS = 200, 8, 8
# Metrics that must be 0 once no request is running.
LEFT_OVER = ("num_requests_running", "num_requests_waiting", "kv_cache_blocks_used")


class ClientLeft(Exception):  # noqa: N818 - no error: the plan says so
    """The client closed its connection as planned."""


@dataclass
class Result:
    """One phase: completed and aborted requests, memory, leftovers at the end."""

    samples: list[Sample] = field(default_factory=list)
    aborted: list[Sample] = field(default_factory=list)
    points: list[Point] = field(default_factory=list)
    left_over: dict[str, float] = field(default_factory=dict)

    @property
    def errors(self) -> list[str]:
        """Errors of requests that were not aborted."""
        return [sample.error for sample in self.samples if sample.error is not None]

    @property
    def broken(self) -> list[str]:
        """The musts that do not hold, in words."""
        found = [f"{name} is {value:g} at the end" for name, value in self.left_over.items() if value != 0]
        found += [f"{len(self.errors)} requests failed, the first with: {self.errors[0]}"] if self.errors else []
        return found + ([] if self.samples else ["no request was completed"])

    def report(self) -> dict[str, Any]:
        """The phase as JSON."""
        return {
            "completed": len(self.samples) - len(self.errors),
            "aborted": len(self.aborted),
            "failed": len(self.errors),
            "left_over": self.left_over,
            "broken": self.broken,
            "ttft_ms": distribution_ms([sample.ttft for sample in (*self.samples, *self.aborted)]),
            "latency_ms": distribution_ms([s.latency for s in self.samples if s.error is None]),
        }


class Load:
    """Sends plans to one server and keeps the account of it."""

    def __init__(self, server: ServerProcess, client: Client, timeout: float) -> None:
        self.result = Result()
        self._client = client
        self._timeout = timeout
        self._api, self._worker = server.pid, worker_pid(server.pid)
        self._done = 0

    async def run(self, plans: Sequence[Plan], concurrency: int) -> None:
        """Closed loop of `concurrency` clients, with a point of memory for every fiftieth of the plans."""
        queue, every = iter(plans), max(1, len(plans) // POINTS)

        async def work() -> None:
            for plan in queue:
                await self.send(plan)
                self._done += 1
                if self._done % every == 0:
                    await self.note_point()

        await self.note_point()
        await asyncio.gather(*(work() for _ in range(concurrency)))

    async def send(self, plan: Plan) -> Sample:
        """One request, to its end or to where its client leaves."""
        sample = Sample(started=time.perf_counter())
        limit = self._timeout if plan.leave_after_seconds is None else plan.leave_after_seconds
        try:
            await asyncio.wait_for(self._exchange(plan, sample), limit)
        except ClientLeft:
            self.result.aborted.append(sample)
            return sample
        except asyncio.TimeoutError:
            if plan.leave_after_seconds is not None:
                self.result.aborted.append(sample)
                return sample
            sample.error = f"no complete response within {limit:g} s"
        except (BenchmarkError, HTTPClientError, OSError, ValueError) as error:
            sample.error = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        sample.ended = time.perf_counter()
        self.result.samples.append(sample)
        return sample

    async def _exchange(self, plan: Plan, sample: Sample) -> None:
        stream = ChatStream(sample)

        def receive(status: int, body: bytes) -> None:
            stream.receive(status, body)
            leave = plan.leave_after_chunks
            # A refusal is a failure, however early the client would have left.
            if status == HTTPStatus.OK and leave is not None and sample.text_chunks >= leave:
                raise ClientLeft

        await self._client.exchange("POST", "v1/chat/completions", json.dumps(plan.body).encode(), receive)
        stream.finish()

    async def metrics(self) -> dict[str, float]:
        """The server's metrics now."""
        return parse_metrics((await get(self._client, "metrics")).decode())

    async def note_point(self) -> None:
        """Add memory and metrics of this moment to the result."""
        done = self._done
        point = take_point(done, self._api, self._worker, await self.metrics())
        self.result.points.append(point)
        memory = ", ".join(f"{name} {getattr(point, name):.0f}" for name in MEMORY_FIELDS)
        print(f"{done} done, {memory}", file=sys.stderr, flush=True)

    async def drain(self) -> None:
        """Waits until the server reports that it is idle, up to a time limit."""
        deadline = time.monotonic() + DRAIN_SECONDS
        while True:
            metrics = await self.metrics()
            # A metric that is not there must not pass for zero.
            self.result.left_over = {name: metrics.get(f"fastdeploy_lp:{name}", float("nan")) for name in LEFT_OVER}
            if not any(self.result.left_over.values()) or time.monotonic() > deadline:
                break
            await asyncio.sleep(POLL_SECONDS)
        await self.note_point()


async def get(client: Client, path: str) -> bytes:
    """The body of a GET; raises BenchmarkError unless the status is 200."""
    text = bytearray()

    def receive(status: int, body: bytes) -> None:
        if status != HTTPStatus.OK:
            raise BenchmarkError(f"{path}: HTTP {status}")
        text.extend(body)

    await client.exchange("GET", path, b"", receive)
    return bytes(text)


def contender(model: str, *options: str) -> Contender:
    """Our server with a cache so small that it is soon full; `options` go last, and so win."""
    ours = our_contender(model, PRECISION)
    return dataclasses.replace(ours, command=(*ours.command, "--num-gpu-blocks-override", str(BLOCKS), *options))


async def soak(args: argparse.Namespace, server: ServerProcess) -> Result:
    """Phase one: a mix of everything for a long time."""
    client = Client(server.url, {})
    load = Load(server, client, args.timeout)
    await load.run(random_plans(args.requests, args.seed), args.concurrency)
    await load.drain()
    await client.close()
    return load.result


async def burst(args: argparse.Namespace, server: ServerProcess) -> tuple[Result, list[int]]:
    """Phase two: many at once on few slots; also the order in which they started, as indices in order of sending."""
    client, source = Client(server.url, {}), random.Random(args.seed)
    load = Load(server, client, args.timeout)
    prompts = [" ".join(source.choices(WORDS, k=source.randint(8, 24))) for _ in range(BURST_REQUESTS)]
    # With connections that stand, requests leave in the order of their tasks.
    await asyncio.gather(*(get(client, "health") for _ in prompts))
    # The client takes the last one first. A server that finds many sockets readable in one turn may see them by the
    # age of their connections, so the oldest one has to carry the first request.
    client.idle.reverse()
    plans = [Plan(chat_body(prompt, BURST_TOKENS) | {"ignore_eos": True}) for prompt in prompts]
    samples = await asyncio.gather(*(load.send(plan) for plan in plans))
    await load.drain()
    await client.close()
    return load.result, start_order([sample.first_text for sample in samples])


def start_order(first_texts: Sequence[float | None]) -> list[int]:
    """Indices by time of the first text, equal times in order; requests without text are left out."""
    known = [(at, index) for index, at in enumerate(first_texts) if at is not None]
    return [index for _, index in sorted(known)]


def max_inversion(order: Sequence[int]) -> int:
    """The most places by which an index comes later than it would in rising order."""
    rank = {index: place for place, index in enumerate(sorted(order))}
    return max((place - rank[index] for place, index in enumerate(order)), default=0)


def run_soak(args: argparse.Namespace) -> dict[str, Any]:
    """Phase one with its own server; writes the plot."""
    with ServerProcess(contender(args.model), args.start_seconds) as server:
        result = asyncio.run(soak(args, server))
    (args.output / "soak.svg").write_text(render_svg(result.points), encoding="utf-8")
    points = [dataclasses.asdict(point) for point in result.points]
    return result.report() | {"growth_mb": growth_mb(result.points), "points": points}


def run_burst(args: argparse.Namespace) -> dict[str, Any]:
    """Phase two with its own server."""
    with ServerProcess(contender(args.model, "--max-num-seqs", str(BURST_SLOTS)), args.start_seconds) as server:
        result, order = asyncio.run(burst(args, server))
    inversion = max_inversion(order)
    # Requests that share a prefill step start together, in any order.
    return result.report() | {"max_inversion": inversion, "in_order": inversion < BURST_SLOTS, "start_order": order}


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse and check the command line."""
    parser = argparse.ArgumentParser(description="Put a long random load on this project's server and look for leaks.")
    add = parser.add_argument
    add("--model", default="smollm2-135m", help="name, directory or GGUF file (default: %(default)s)")
    add("--requests", type=positive_int, default=10_000, metavar="N", help="default: 10000")
    add("--concurrency", type=positive_int, default=48, metavar="N", help="at a time (default: 48)")
    add("--seed", type=int, default=0, metavar="N", help="of everything random (default: 0)")
    add("--burst", action="store_true", help=f"then {BURST_REQUESTS} requests at once on {BURST_SLOTS} slots")
    add("--timeout", type=float, default=600.0, metavar="S", help="limit for one request (default: 600)")
    add("--start-seconds", type=float, default=600.0, metavar="S", help="limit for a server's start (default: 600)")
    add("--output", type=Path, required=True, metavar="DIR", help="where soak.json and soak.svg go")
    args = parser.parse_args(argv)
    if not args.output.is_dir():
        parser.error(f"--output: no directory {args.output}")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; return 1 when a must does not hold."""
    args = parse_arguments(argv)
    # Ending the run by its process id also ends the server.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    phases: dict[str, dict[str, Any]] = {}
    try:
        for name, run in (("soak", run_soak), ("burst", run_burst))[: 2 if args.burst else 1]:
            phases[name] = run(args)
            text = json.dumps(phases, indent=1, ensure_ascii=False)
            (args.output / "soak.json").write_text(text + "\n", encoding="utf-8")
            shown = {key: value for key, value in phases[name].items() if key not in ("points", "start_order")}
            print(json.dumps({name: shown}, indent=1))
    except (ServerError, BenchmarkError, HTTPClientError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return int(any(phase["broken"] for phase in phases.values()))


if __name__ == "__main__":
    sys.exit(main())
