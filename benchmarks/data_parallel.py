"""One worker with all cores against several with a share each: throughput, and how evenly the work is spread.

Both servers run all the time, and rounds of load go to them in turns, so that whatever else the machine does meets
both. ``benchmarks/README.md`` says what is measured; ``--help`` lists the options.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import httpx

SERVER = "fastdeploy_lp.entrypoints.openai.api_server"
START_SECONDS, REQUEST_SECONDS = 180.0, 600.0
WORDS = ("river", "lamp", "stone", "winter", "train", "garden", "letter", "bread", "mountain", "window", "ship", "fox")


@dataclass(frozen=True)
class Round:
    """Results of one round of load."""

    tokens_per_second: float
    median_seconds: float
    worst_seconds: float


@dataclass
class Load:
    """Parameters of a round of load."""

    requests: int
    concurrency: int
    prompt_words: int
    max_tokens: int

    def bodies(self, seed: int) -> list[dict[str, Any]]:
        """Prompts of which no two begin alike, so that no cache helps."""
        source = random.Random(seed)
        return [
            {
                "prompt": f"{seed} {number} " + " ".join(source.choice(WORDS) for _ in range(self.prompt_words)),
                "max_tokens": self.max_tokens,
                "ignore_eos": True,
                "temperature": 0,
            }
            for number in range(self.requests)
        ]


class Server:
    """A server with this many workers, on its own ports."""

    def __init__(self, workers: int, options: Sequence[str]) -> None:
        self.workers = workers
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{probe.getsockname()[1]}"
        port = self.url.rpartition(":")[2]
        command = [sys.executable, "-m", SERVER, "--port", port, "--data-parallel-size", str(workers), *options]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)

    def wait_until_ready(self) -> None:
        """Raises SystemExit if it ends or takes too long."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                urlopen(f"{self.url}/health").close()
            except URLError:
                time.sleep(0.1)
            else:
                return
        raise SystemExit(f"the server with {self.workers} workers did not come up")

    def stop(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait()

    def generated_by_worker(self) -> list[int]:
        """Tokens that each worker generated."""
        text = urlopen(f"{self.url}/metrics").read().decode()
        return [int(float(each)) for each in re.findall(r"^fastdeploy_lp:generation_tokens_total\S* (\S+)", text, re.M)]


async def run_round(url: str, load: Load, seed: int) -> Round:
    """Sends a round's requests, so many at a time."""
    seconds: list[float] = []
    left = iter(load.bodies(seed))
    async with httpx.AsyncClient(timeout=REQUEST_SECONDS) as client:

        async def work() -> None:
            for body in left:
                began = time.monotonic()
                answer = await client.post(f"{url}/v1/completions", json=body)
                answer.raise_for_status()
                if answer.json()["usage"]["completion_tokens"] != load.max_tokens:
                    raise SystemExit("an answer has the wrong length")
                seconds.append(time.monotonic() - began)

        began = time.monotonic()
        await asyncio.gather(*(work() for _ in range(load.concurrency)))
        took = time.monotonic() - began
    return Round(load.requests * load.max_tokens / took, statistics.median(seconds), max(seconds))


def compare(servers: Sequence[Server], load: Load, rounds: int) -> dict[str, Any]:
    """Rounds in turns; the ratio is that of the medians, several workers to one."""
    found: list[list[Round]] = [[] for _ in servers]
    before = [server.generated_by_worker() for server in servers]
    for number in range(rounds):
        for server, results in zip(servers, found, strict=True):
            results.append(asyncio.run(run_round(server.url, load, number + 1)))
    medians = [statistics.median(each.tokens_per_second for each in results) for results in found]
    return {
        "load": asdict(load),
        "tokens_per_second": [round(each, 1) for each in medians],
        "ratio": round(medians[1] / medians[0], 3),
        "median_seconds": [round(statistics.median(each.median_seconds for each in results), 2) for results in found],
        "worst_seconds": [round(max(each.worst_seconds for each in results), 2) for results in found],
        "tokens_by_worker": [
            [now - then for now, then in zip(server.generated_by_worker(), was, strict=True)]
            for server, was in zip(servers, before, strict=True)
        ],
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Prints one line of JSON for each load."""
    parser = argparse.ArgumentParser(description="Compare one worker with several on the same cores.")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--smoke", action="store_true", help="one short round, to see that it works")
    args = parser.parse_args(argv)
    rounds = 1 if args.smoke else args.rounds
    loads = [Load(16, 2, 64, 32), Load(32, 8, 64, 32), Load(64, 32, 64, 32), Load(16, 8, 400, 8)]
    if args.smoke:
        loads = [Load(4, 2, 8, 4)]
    options = ["--model", args.model, "--quantization", "w8a16", "--max-model-len", "1024"]
    servers: list[Server] = []
    try:
        servers += [Server(1, options), Server(args.workers, options)]
        for server in servers:
            server.wait_until_ready()
            asyncio.run(run_round(server.url, Load(4, 4, 8, 4), 0))
        for load in loads:
            print(json.dumps(compare(servers, load, rounds)), flush=True)
    finally:
        for server in servers:
            server.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
