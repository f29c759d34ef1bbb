"""Slow code of processors' authors beside the server's own work: health checks and a neighbour's tokens.

Requests whose constructor, `validate_params` or `Params` takes seconds run beside a stream; calm and loaded rounds
alternate. ``benchmarks/README.md`` says what is measured; ``--help`` lists the options.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import httpx

SERVER = "fastdeploy_lp.entrypoints.openai.api_server"
PROCESSORS = {"Params": "SlowParams", "validate_params": "SlowCheck", "constructor": "SlowInstance"}
START_SECONDS, REQUEST_SECONDS = 180.0, 120.0
PROBE_SECONDS = 0.05


@dataclass
class Round:
    """Milliseconds between a neighbour's tokens, and of each `/health/live`."""

    gaps: list[float] = field(default_factory=list)
    health: list[float] = field(default_factory=list)

    def add(self, other: Round) -> None:
        """Take in another round's numbers."""
        self.gaps += other.gaps
        self.health += other.health

    def summary(self) -> dict[str, float]:
        """Median and 99th percentile of the gaps, 99th percentile and maximum of the health checks, in ms."""
        return {
            "gap_p50": statistics.median(self.gaps),
            "gap_p99": _p99(self.gaps),
            "health_p99": _p99(self.health),
            "health_max": max(self.health),
        }


def _p99(values: Sequence[float]) -> float:
    return sorted(values)[min(len(values) - 1, int(0.99 * len(values)))]


@contextmanager
def running_server(options: argparse.Namespace) -> Iterator[str]:
    """A server's URL."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    here = Path(__file__).parent
    specs = ["slow_author:SlowParams", "slow_author:SlowCheck", "SlowInstance=slow_author:PLUGIN"]
    command = [sys.executable, "-m", SERVER, "--model", options.model, "--port", str(port), "--max-num-seqs", "8"]
    path = os.pathsep.join(filter(None, [str(here), os.environ.get("PYTHONPATH")]))
    process = subprocess.Popen(
        [*command, "--logits-processors", *specs], stdout=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": path}
    )
    try:
        url = f"http://127.0.0.1:{port}"
        _wait_until_ready(url, process)
        yield url
    finally:
        process.terminate()
        process.wait()


def _wait_until_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urlopen(f"{url}/health"):
                return
        except (URLError, OSError):
            time.sleep(0.5)
    raise SystemExit("the server did not start")


def measure(url: str, seconds: float, slow: Sequence[dict[str, Any]]) -> Round:
    """One round: a stream and health checks for so many seconds, with these requests sent at its start."""
    found, over = Round(), threading.Event()
    threads = [threading.Thread(target=_probe, args=(url, found, over))]
    threads += [threading.Thread(target=_post, args=(url, body)) for body in slow]
    body = {"prompt": "The river", "max_tokens": 2000, "ignore_eos": True, "temperature": 0, "stream": True}
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=REQUEST_SECONDS) as response:
        if response.status_code != httpx.codes.OK:
            raise SystemExit(response.read().decode())
        lines = (line for line in response.iter_lines() if line.startswith("data: {"))
        next(lines)
        for thread in threads:
            thread.start()
        began = last = time.perf_counter()
        for _ in lines:
            now = time.perf_counter()
            found.gaps.append(1000 * (now - last))
            last = now
            if now - began > seconds:
                break
    over.set()
    for thread in threads:
        thread.join()
    return found


def _probe(url: str, found: Round, over: threading.Event) -> None:
    with httpx.Client(timeout=REQUEST_SECONDS) as client:
        client.get(f"{url}/health/live")
        while not over.wait(PROBE_SECONDS):
            began = time.perf_counter()
            client.get(f"{url}/health/live").raise_for_status()
            found.health.append(1000 * (time.perf_counter() - began))


def _post(url: str, body: dict[str, Any]) -> None:
    httpx.post(f"{url}/v1/completions", json=body, timeout=REQUEST_SECONDS).raise_for_status()


def slow_request(name: str, seconds: float, *, spins: bool) -> dict[str, Any]:
    """A request whose processor's code takes so long."""
    chosen = {name: {"seconds": seconds, "spins": spins}}
    return {"prompt": "The lamp", "max_tokens": 2, "logits_processors": chosen}


def main() -> int:
    """Prints the table, and writes JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each piece of slow code")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--smoke", action="store_true", help="one short round, to see that it runs")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    seconds, rounds = (0.5, 1) if options.smoke else (options.seconds, options.rounds)
    found: dict[str, Round] = {"calm": Round()}
    with running_server(options) as url:
        measure(url, 1.0, [])
        for _ in range(rounds):
            for kind, name in PROCESSORS.items():
                for spins in (False, True):
                    found["calm"].add(measure(url, seconds, []))
                    loaded = measure(url, seconds, [slow_request(name, seconds, spins=spins)])
                    found.setdefault(f"{kind}, {'spins' if spins else 'sleeps'}", Round()).add(loaded)
    calm = found["calm"].summary()
    print(f"{'beside':<26}{'gap p50':>9}{'p99':>8}{'p99 / calm':>12}{'health p99':>12}{'max':>8}  ms")
    for kind, each in found.items():
        line = each.summary()
        ratio = line["gap_p99"] / calm["gap_p99"]
        print(
            f"{kind:<26}{line['gap_p50']:>9.1f}{line['gap_p99']:>8.1f}{ratio:>12.2f}"
            f"{line['health_p99']:>12.1f}{line['health_max']:>8.1f}"
        )
    if options.json:
        options.json.write_text(json.dumps({kind: asdict(each) for kind, each in found.items()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
