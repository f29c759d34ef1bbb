"""Load at twice the capacity while workers are killed and clients misbehave: does anything hang, leak or lie?

`PYTHONPATH=tests:benchmarks python -m reliability.chaos --seconds 900` prints a report as JSON; status 1 says that
something was wrong. `test_chaos.py` runs it for a moment, and with `-m long` for as long as that.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from urllib.request import urlopen

from reliability.chaos_clients import ChaosClients, calm_texts
from reliability.chaos_requests import bodies
from soak import LEFT_OVER
from soak_memory import SETTLED_SHARE, parse_metrics, status_mb, worker_pid
from support.processes import process_exists
from support.server import ServerProcess, health
from support.tiny import write_tiny_checkpoint

SLOTS, WAITING = 4, 4
CLIENTS = 2 * (SLOTS + WAITING)
CONTEXT = 4096
STEP_TIMEOUT, STREAM_TIMEOUT = 3.0, 1.5
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGSEGV, signal.SIGSTOP)
BACK_SECONDS, PATIENCE_SECONDS = 10.0, 90.0
DRAIN_SECONDS = 30.0
MAX_GROWTH_MB = 40.0


@dataclass
class Kill:
    """One worker's end: by which signal, and how long the first right answer took from there."""

    by: str
    back_after: float


@dataclass
class Report:
    """What a run found; `problems` are what must not be, `slow` is what a loaded machine may explain."""

    seconds: float = 0.0
    ends: dict[str, dict[str, int]] = field(default_factory=dict)
    kills: list[Kill] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    slow: list[str] = field(default_factory=list)
    rss_mb: list[float] = field(default_factory=list)
    fds: tuple[int, int] = (0, 0)
    metrics: dict[str, float] = field(default_factory=dict)


def spread(values: Sequence[float], count: int = 20) -> list[float]:
    """Some of them, from the first to the last."""
    return list(values[:: max(len(values) // count, 1)])


class ChaosRun:
    """One server, its clients, and whoever kills its workers."""

    def __init__(self, server: ServerProcess, seconds: float, seed: int, kill_every: float) -> None:
        self._server = server
        self._seconds = seconds
        self._seed = seed
        self._kill_every = kill_every
        self._workers: set[int] = set()
        self.report = Report(seconds=seconds)

    async def run(self, num_bodies: int) -> Report:
        """Calm first, then chaos, then calm again."""
        calm = await calm_texts(self._server.url, bodies(num_bodies, self._seed))
        self._workers.add(self._server.worker_pid)
        fds = self._count_fds()
        clients = ChaosClients(self._server.url, calm, self._seed)
        until = time.monotonic() + self._seconds
        await asyncio.gather(
            *(clients.work(until) for _ in range(CLIENTS)),
            clients.read_slowly(until),
            self._kill(clients, until),
            self._note_memory(until),
        )
        await clients.ask_until_served(PATIENCE_SECONDS)
        await clients.close()
        self.report.problems += clients.account.problems
        self.report.ends = {kind.value: dict(ends) for kind, ends in clients.account.ends.items()}
        await self._check_leaks(fds)
        return self.report

    async def _kill(self, clients: ChaosClients, until: float) -> None:
        source = random.Random(self._seed)
        while time.monotonic() + self._kill_every < until:
            await asyncio.sleep(source.uniform(0.5, 1.5) * self._kill_every)
            number = source.choice(SIGNALS)
            try:
                pid = worker_pid(self._server.pid)
            except ProcessLookupError:
                continue
            self._workers.add(pid)
            os.kill(pid, number)
            try:
                seconds = await clients.ask_until_served(PATIENCE_SECONDS)
            except TimeoutError:
                self.report.problems.append(f"{number.name}: no right answer within {PATIENCE_SECONDS:g} s")
                return
            allowed = BACK_SECONDS + (STEP_TIMEOUT if number is signal.SIGSTOP else 0.0)
            if seconds > allowed:
                self.report.slow.append(f"{number.name}: service was back after {seconds:.1f} s")
            self.report.kills.append(Kill(number.name, round(seconds, 2)))

    async def _note_memory(self, until: float) -> None:
        while time.monotonic() < until:
            self.report.rss_mb.append(round(status_mb(self._server.pid)["VmRSS"], 1))
            await asyncio.sleep(max(self._seconds / 100, 0.5))

    async def _check_leaks(self, fds: int) -> None:
        """Slots, blocks, memory, files and processes, once nobody asks for anything."""
        problems = self.report.problems
        metrics = parse_metrics(read_metrics(self._server))
        deadline = time.monotonic() + DRAIN_SECONDS
        left: dict[str, float] = {}
        while time.monotonic() < deadline:
            metrics = parse_metrics(read_metrics(self._server))
            left = {name: metrics.get(f"fastdeploy_lp:{name}", float("nan")) for name in LEFT_OVER}
            left["file descriptors"] = max(self._count_fds() - fds, 0)
            if not any(left.values()):
                break
            await asyncio.sleep(0.2)
        problems += [f"{name}: {value:g} left over" for name, value in left.items() if value]
        self.report.fds = fds, self._count_fds()
        names = ("worker_restarts", "request_replays", "request_lost", "request_timeout", "stream_stalled")
        self.report.metrics = {name: metrics[f"fastdeploy_lp:{name}_total"] for name in names}
        rss = self.report.rss_mb
        growth = max(rss[-3:], default=0.0) - rss[int(SETTLED_SHARE * len(rss))]
        if growth > MAX_GROWTH_MB:
            problems.append(f"the API process grew by {growth:.0f} MB")
        now = self._server.worker_pid
        problems += [f"worker {pid} lives on" for pid in self._workers - {now} if process_exists(pid)]
        if health(self._server.url) != 200:
            problems.append("it is not ready at the end")
        for word in ("Traceback", "unexpected error", "Exception in ASGI"):
            if word in own_log(self._server):
                problems.append(f"{word} in the log: {own_log(self._server).partition(word)[2][:600]}")

    def _count_fds(self) -> int:
        return len(os.listdir(f"/proc/{self._server.pid}/fd"))


def own_log(server: ServerProcess) -> str:
    """What the server says, without what Paddle says of SIGSEGV, and without the faults that were asked for."""
    expected = ("Traceback (most", "C++ Traceback (most", "  ")
    return "\n".join(line for line in server.log.splitlines() if not line.startswith(expected))


def read_metrics(server: ServerProcess) -> str:
    """The page of metrics."""
    with urlopen(server.metrics_url) as response:
        text: str = response.read().decode()
        return text


def chaos_server(folder: Path) -> ServerProcess:
    """A tiny model with few slots, that restarts its worker as often as it ends."""
    checkpoint, temporary = folder / "c", folder / "t"
    checkpoint.mkdir()
    temporary.mkdir()
    write_tiny_checkpoint(checkpoint, context=CONTEXT)
    options = ["--max-num-seqs", str(SLOTS), "--max-waiting-requests", str(WAITING), "--max-model-len", str(CONTEXT)]
    options += ["--logits-processors", "LogitBiasLogitsProcessor", "support.served_faults:RaisesOnBoom"]
    options += ["--logits-processors-max-faults", "0", "--max-worker-restarts", "1000"]
    options += ["--step-timeout", str(STEP_TIMEOUT), "--stream-timeout", str(STREAM_TIMEOUT)]
    return ServerProcess(*options, model=str(checkpoint), env={"TMPDIR": str(temporary), "FASTDEPLOY_LP_PLUGINS": ""})


def run_chaos(folder: Path, seconds: float, seed: int, kill_every: float, num_bodies: int = 40) -> Report:
    """A whole run in an empty folder, with the server's start and end."""
    with chaos_server(folder) as server:
        shared = set(os.listdir("/dev/shm"))
        report = asyncio.run(ChaosRun(server, seconds, seed, kill_every).run(num_bodies))
        status = server.stop()
        if status not in (0, -signal.SIGTERM):
            report.problems.append(f"the server ended with status {status}")
        last = server.log[-3000:]
    if left := [entry.name for entry in (folder / "t").glob("fastdeploy_lp-*")]:
        report.problems.append(f"left in the folder for temporary files: {left}")
    marks = ("fastdeploy", "paddle", "KMP_REGISTERED")
    ours = [name for name in set(os.listdir("/dev/shm")) - shared if any(mark in name for mark in marks)]
    gone = [name for name in ours if not process_exists(int(name.split("_")[-2] if "KMP" in name else 1))]
    if gone:
        report.problems.append(f"left in shared memory: {gone}")
    if report.problems:
        print(last, file=sys.stderr)
    return report


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; 1 when something was wrong or slow."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=900.0, help="of chaos (default: %(default)g)")
    parser.add_argument("--seed", type=int, default=0, help="of everything random (default: 0)")
    parser.add_argument("--kill-every", type=float, default=15.0, help="mean seconds (default: %(default)g)")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="c-") as folder:
        report = run_chaos(Path(folder), args.seconds, args.seed, args.kill_every)
    print(json.dumps(asdict(report) | {"rss_mb": spread(report.rss_mb), "problems": report.problems[:20]}, indent=1))
    return int(bool(report.problems or report.slow))


if __name__ == "__main__":
    sys.exit(main())
