"""One stream and health checks beside hostile clients: gaps between tokens, `/health/live`, memory afterwards.

A server runs with the processors that the attacks need, as an operator sets it up who puts even gaps between tokens
before prompts. Each attacked round of `attacks.py` is compared with the calm rounds before and after it.
``benchmarks/README.md`` says what is measured; ``--help`` lists the options.
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
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import httpx
from attacks import ATTACKS, KEY, SPECS
from soak_memory import proportional_mb

SERVER = "fastdeploy_lp.entrypoints.openai.api_server"
START_SECONDS, REQUEST_SECONDS = 180.0, 240.0
PROBE_SECONDS = 0.05
VICTIMS_KEY = "victim"
# Of a stream; another one follows. A step takes longer with a long context, and attacks take longer than calm rounds.
VICTIMS_TOKENS = 400
# Time limit for the release of unused grammar caches and processes.
SETTLE_SECONDS, SETTLED_MB = 15.0, 100.0
IN_SMOKE = ("2,048 prompts x 4,096 bad words", "/tokenize of 15 MB", "Params that spins")
# Of a process or thread that has ended since it was listed.
ENDED = (FileNotFoundError, ProcessLookupError)
# Column of the numbers in the first line of /proc/stat.
STEAL = 7
BOUNDS = "the bounds are 2 x calm, 1000 ms, 100 ms and 200 MB"


@dataclass(frozen=True)
class Server:
    """A running server; `pid` is the API process."""

    url: str
    metrics_url: str
    pid: int

    def memory_mb(self) -> float:
        """Memory of the API process and of all that it started, in MB; pages that they share count once."""
        return sum(_memory_mb(pid) for pid in _family(self.pid))


@dataclass
class Round:
    """Milliseconds between a victim's tokens, and of each `/health/live`; how often an attack got each status.

    stolen: milliseconds of processor time that other machines of the host took during each `/health/live`.
    """

    gaps: list[float] = field(default_factory=list)
    health: list[float] = field(default_factory=list)
    stolen: list[float] = field(default_factory=list)
    statuses: dict[str, int] = field(default_factory=dict)
    grown_mb: float = 0.0

    def p99(self) -> float:
        """Of the gaps."""
        return sorted(self.gaps)[min(len(self.gaps) - 1, int(0.99 * len(self.gaps)))]

    def slowest_health(self) -> tuple[float, float]:
        """Milliseconds of the slowest `/health/live`, and those stolen meanwhile."""
        return max(zip(self.health, self.stolen, strict=True))


def _family(pid: int) -> list[int]:
    found = [pid]
    for parent in found:
        for children in Path(f"/proc/{parent}/task").glob("*/children"):
            with suppress(*ENDED):
                found += [int(child) for child in children.read_text().split()]
    return found


def _memory_mb(pid: int) -> float:
    try:
        return proportional_mb(pid)
    except ENDED:
        return 0.0


@contextmanager
def running_server(options: argparse.Namespace) -> Iterator[Server]:
    """A server that attacks can begin on."""
    port, metrics_port = _free_port(), _free_port()
    here = Path(__file__).parent
    command = [sys.executable, "-m", SERVER, "--model", options.model, "--port", str(port), "--max-num-seqs", "8"]
    command += ["--metrics-port", str(metrics_port), "--trust-request-chat-template", "--fair-queue"]
    command += ["--prompt-step-seconds", "0.005", "--client-time-share", "0.25"]
    command += ["--api-key", KEY, VICTIMS_KEY]
    path = os.pathsep.join(filter(None, [str(here), os.environ.get("PYTHONPATH")]))
    process = subprocess.Popen(
        [*command, "--logits-processors", *SPECS],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": path},
    )
    try:
        server = Server(f"http://127.0.0.1:{port}", f"http://127.0.0.1:{metrics_port}", process.pid)
        _wait_until_ready(server.url, process)
        yield server
    finally:
        process.terminate()
        process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_until_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urlopen(f"{url}/health"):
                return
        except (URLError, OSError):
            time.sleep(0.5)
    raise SystemExit("the server did not start")


def measure(server: Server, seconds: float, attack: str | None = None, bodies: int | None = None) -> Round:
    """One round of at least so many seconds, and until the attack has ended; it sends at most so many bodies."""
    found, over = Round(), threading.Event()
    threads = [threading.Thread(target=_probe, args=(server.url, found, over))]
    if attack is not None:
        threads.append(threading.Thread(target=_attack, args=(server, attack, bodies, found)))
    for thread in threads:
        thread.start()
    began = time.perf_counter()
    while time.perf_counter() - began < seconds or any(thread.is_alive() for thread in threads[1:]):
        _stream(server.url, found, began + seconds, threads[1:])
    over.set()
    for thread in threads:
        thread.join()
    return found


def _stream(url: str, found: Round, until: float, attackers: Sequence[threading.Thread]) -> None:
    """One victim's stream, which ends early when the round is over."""
    body = {"prompt": "The river", "max_tokens": VICTIMS_TOKENS, "ignore_eos": True, "temperature": 0, "stream": True}
    headers = {"authorization": f"Bearer {VICTIMS_KEY}"}
    with httpx.stream("POST", f"{url}/v1/completions", json=body, headers=headers, timeout=REQUEST_SECONDS) as response:
        if response.status_code != httpx.codes.OK:
            raise SystemExit(response.read().decode())
        lines = (line for line in response.iter_lines() if line.startswith("data: {"))
        next(lines)
        last = time.perf_counter()
        for line in lines:
            if '"error"' in line:
                raise SystemExit(line)
            now = time.perf_counter()
            found.gaps.append(1000 * (now - last))
            last = now
            if now > until and not any(thread.is_alive() for thread in attackers):
                return


def _probe(url: str, found: Round, over: threading.Event) -> None:
    with httpx.Client(timeout=REQUEST_SECONDS) as client:
        client.get(f"{url}/health/live")
        while not over.wait(PROBE_SECONDS):
            began, stolen = time.perf_counter(), _stolen_ms()
            client.get(f"{url}/health/live").raise_for_status()
            found.health.append(1000 * (time.perf_counter() - began))
            found.stolen.append(_stolen_ms() - stolen)


def _stolen_ms() -> float:
    """Returns the milliseconds of processor time, of all cores, that the machine did not get since its start."""
    _, *ticks = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    return 1000 * int(ticks[STEAL]) / os.sysconf("SC_CLK_TCK")


def _attack(server: Server, name: str, bodies: int | None, found: Round) -> None:
    program = [sys.executable, str(Path(__file__).with_name("attacks.py")), name, server.url, server.metrics_url]
    program += [] if bodies is None else ["--bodies", str(bodies)]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    found.statuses = dict(json.loads(done.stdout))


def main() -> int:
    """Prints the table, and writes JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--seconds", type=float, default=5.0, help="of a round, at least")
    parser.add_argument("--attacks", nargs="+", choices=list(ATTACKS), default=list(ATTACKS), metavar="NAME")
    parser.add_argument("--cold-cache", action="store_true", help="leave the KV cache unwritten: it counts as memory")
    parser.add_argument("--smoke", action="store_true", help="three attacks, to see that it runs")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    names = IN_SMOKE if options.smoke else options.attacks
    seconds = 1.0 if options.smoke else options.seconds
    found: dict[str, dict[str, Any]] = {}
    print(
        f"{'beside':<40}{'p50':>7}{'/ calm':>8}{'p99':>8}{'/ calm':>8}{'max':>8}{'live max':>10}{'stolen':>8}{'MB':>7}"
        f"  ({BOUNDS})"
    )
    with running_server(options) as server:
        if not (options.smoke or options.cold_cache):
            _write_whole_cache(server)
        latest = measure(server, seconds)
        for name in names:
            before = server.memory_mb()
            attacked = measure(server, seconds, name)
            earlier, latest = latest, measure(server, seconds)
            calm = Round(earlier.gaps + latest.gaps, earlier.health + latest.health, earlier.stolen + latest.stolen)
            attacked.grown_mb = _settled_growth_mb(server, before)
            found[name] = {"calm": asdict(calm), "attacked": asdict(attacked)}
            _print_line(name, calm, attacked)
    if options.json:
        options.json.write_text(json.dumps(found))
    return 0


def _write_whole_cache(server: Server) -> None:
    """The memory of the KV cache is set aside at the start, and becomes the process's as it is first written to."""
    rows = [[(61 * row + 7 * place) % 499 for place in range(2040)] for row in range(8)]
    headers = {"authorization": f"Bearer {KEY}"}
    answer = httpx.post(f"{server.url}/v1/embeddings", json={"input": rows}, headers=headers, timeout=REQUEST_SECONDS)
    answer.raise_for_status()


def _settled_growth_mb(server: Server, before: float) -> float:
    deadline = time.monotonic() + SETTLE_SECONDS
    while (grown := server.memory_mb() - before) > SETTLED_MB and time.monotonic() < deadline:
        time.sleep(0.5)
    return grown


def _print_line(name: str, calm: Round, attacked: Round) -> None:
    p50, p99 = statistics.median(attacked.gaps), attacked.p99()
    live, stolen = attacked.slowest_health()
    print(
        f"{name:<40}{p50:>7.1f}{p50 / statistics.median(calm.gaps):>8.2f}{p99:>8.1f}{p99 / calm.p99():>8.2f}"
        f"{max(attacked.gaps):>8.0f}{live:>10.1f}{stolen:>8.0f}{attacked.grown_mb:>7.0f}  {attacked.statuses}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
