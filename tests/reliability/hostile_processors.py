"""Random churn beside processors of every dialect that raise, exit, crash, hang and write what they must not.

`PYTHONPATH=tests:benchmarks python -m reliability.hostile_processors --requests 1000` prints a report as JSON. Status 1
says that a promise was broken: the server ended, a token passed a mandatory mask, the answer to a request that uses no
hostile processor differs from the one it has in calm times, or an error names another processor than the request's.

A batch-level processor without `only_with_args` is called with the rows of all flat requests, and may write to them.
Requests whose processor writes to other rows select it by name: they are a group, and no healthy request is in it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reliability.chaos_requests import ClientLeft, Exchange
from reliability.hostile_answers import ENDED, Answer, wrong_with_error
from reliability.hostile_requests import ARGUMENTS, NEED_TORCH, NUM_SLOW, PROMPT, Hostility, deck, healthy_bodies
from soak_memory import parse_metrics
from support.server import ServerProcess, health
from support.tiny import write_tiny_checkpoint

from fastdeploy_lp.entrypoints.bench.http_client import Client, HTTPClientError

CLIENTS = 12
SLOTS, CONTEXT, BLOCK, BLOCKS = 8, 256, 8, 40
TIME_BUDGET, STEP_TIMEOUT, MAX_RESTARTS = 0.25, 5.0, 3
HANG_SECONDS = 180.0
OPERATOR_SECONDS = 0.5
HOSTILE_SHARE, LEAVING_SHARE, STREAM_SHARE = 0.25, 0.1, 0.5
HARMLESS = ("Tilt", "LogitBiasLogitsProcessor", "VllmMask", "plugin_mask")
DECLARED = (
    "LogitBiasLogitsProcessor",
    "support.hostile:Tilt",
    "support.hostile:Guarded",
    "support.hostile:Opaque",
    "support.hostile:VllmPaddle",
    "support.hostile_torch:VllmTorch",
    "support.hostile:Adapter",
    "Plugin=support.hostile:PLUGIN",
    "support.hostile_torch:HuggingFace",
    "plugin_mask=support.masks:plugin_mask",
    "support.masks:VllmMask",
)
ADMIN_KEY = "operator"
CHAT = "v1/chat/completions"
PROCESSORS = "v1/logits_processors"


@dataclass
class Report:
    """Numbers of a run, and what must not be: `banned` tokens, `mismatches`, `wrong_errors` and other `problems`."""

    seconds: float = 0.0
    healthy: Counter[str] = field(default_factory=Counter)
    hostile: Counter[str] = field(default_factory=Counter)
    modes: Counter[str] = field(default_factory=Counter)
    ended_worker: int = 0
    banned: int = 0
    mismatches: list[str] = field(default_factory=list)
    wrong_errors: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    resets: Counter[str] = field(default_factory=Counter)
    preemptions: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)

    @property
    def is_clean(self) -> bool:
        """Whether every promise was kept."""
        return not (self.banned or self.mismatches or self.wrong_errors or self.problems)


@dataclass(frozen=True)
class Calm:
    """A healthy request and the answer that it has while no hostile one runs."""

    body: dict[str, Any]
    answer: Answer


class HostileRun:
    """One server, its clients, and its operator."""

    def __init__(self, server: ServerProcess, seed: int) -> None:
        self.report = Report()
        self._server = server
        self._source = random.Random(seed)
        self._clients = [Client(server.url, {"Authorization": f"Bearer {key}"}) for key in keys()]
        self._operator = Client(server.url, {"Authorization": f"Bearer {ADMIN_KEY}"})
        self._calm: list[Calm] = []
        self._prompt_tokens = 0

    async def run(self, bodies: list[dict[str, Any]], hostilities: list[Hostility], count: int) -> Report:
        """`count` requests, of which the hostile ones are the given ones; calm before, and calm again."""
        began = time.monotonic()
        await self._read_calm(bodies)
        plan: list[Hostility | Calm] = [*hostilities]
        plan += [self._source.choice(self._calm) for _ in range(count - len(plan))]
        self._source.shuffle(plan)
        waiting = iter(plan)
        operator = asyncio.create_task(self._operate())
        try:
            await asyncio.gather(*(self._work(client, waiting) for client in self._clients))
        finally:
            operator.cancel()
            (stopped,) = await asyncio.gather(operator, return_exceptions=True)
        if not isinstance(stopped, asyncio.CancelledError):
            self._blame(f"the operator could not do their work: {stopped!r}")
        await self._reset_quarantined()
        # All at once: more than there are blocks for.
        again = iter(2 * self._calm)
        await asyncio.gather(*(self._work(client, again) for client in self._clients))
        await self._check_end()
        for client in (*self._clients, self._operator):
            await client.close()
        self.report.seconds = round(time.monotonic() - began, 1)
        return self.report

    async def _read_calm(self, bodies: list[dict[str, Any]]) -> None:
        """Each body's answer; plain and streamed have to agree."""
        client = self._clients[0]
        probe = Exchange()
        await post(client, {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 1}, probe)
        self._prompt_tokens = json.loads(probe.body)["usage"]["prompt_tokens"]
        for body in bodies:
            answers = [await answer_to(client, body | {"stream": stream}) for stream in (False, True)]
            if answers[0] != answers[1] or answers[0].status != 200 or answers[0].num_banned:
                raise RuntimeError(f"in calm times: {answers}")
            self._calm.append(Calm(body, answers[0]))

    async def _work(self, client: Client, waiting: Any) -> None:
        for planned in waiting:
            try:
                if isinstance(planned, Hostility):
                    await asyncio.wait_for(self._send_hostile(client, planned), HANG_SECONDS)
                else:
                    stream = self._source.random() < STREAM_SHARE
                    await asyncio.wait_for(self._send_healthy(client, planned, stream=stream), HANG_SECONDS)
            except asyncio.TimeoutError:
                self._blame(f"no whole answer within {HANG_SECONDS:g} s: {planned}")
            except (HTTPClientError, OSError, ValueError) as error:
                self._blame(f"{type(error).__name__}: {error}: {planned}")

    async def _send_healthy(self, client: Client, calm: Calm, *, stream: bool) -> None:
        exchange = Exchange()
        leaves = stream and self._source.random() < LEAVING_SHARE
        if leaves:
            exchange.leave_after = self._source.randint(0, 10)
        try:
            await post(client, calm.body | {"stream": stream}, exchange)
        except ClientLeft:
            answer = Answer.of(exchange)
            right, end = answer.error is None and answer.begins(calm.answer), "right until the client left"
        else:
            answer = Answer.of(exchange)
            right, end = answer == calm.answer, "right"
        self.report.banned += answer.num_banned
        self.report.healthy[end if right else f"wrong, status {answer.status}"] += 1
        if not right:
            found = answer.error or f"begins so: {answer.begins(calm.answer)}, whole: {answer.is_whole}, {answer}"
            self.report.mismatches.append(f"{calm.body}: status {answer.status}, {found}, was {calm.answer}"[:3000])

    async def _send_hostile(self, client: Client, hostility: Hostility) -> None:
        body = hostility.body(self._source, self._prompt_tokens)
        answer = await answer_to(client, body)
        self.report.banned += answer.num_banned
        self.report.modes[f"{hostility.mode} in {hostility.where}"] += 1
        code = "whole answer" if answer.error is None else f"{answer.status} {answer.error.get('code')}"
        self.report.hostile[f"{hostility.processor}: {code}"] += 1
        if answer.error is None:
            if not hostility.may_succeed:
                self.report.wrong_errors.append(f"{hostility}: status {answer.status} without an error")
            return
        self.report.ended_worker += ENDED in str(answer.error.get("message"))
        wrong = wrong_with_error(answer, hostility.processor, [*ARGUMENTS, *HARMLESS])
        if wrong is not None:
            self.report.wrong_errors.append(f"{hostility}: {wrong}"[:1500])

    async def _operate(self) -> None:
        """Put what is in quarantine back into service, so that hostility goes on; add up preemptions."""
        last = 0.0
        while True:
            await self._reset_quarantined()
            count = (await self._metrics())["num_preemptions_total"]
            self.report.preemptions += max(count - last, 0.0)
            last = count
            await asyncio.sleep(OPERATOR_SECONDS)

    async def _reset_quarantined(self) -> None:
        client, cards = self._operator, Exchange()
        await client.exchange("GET", PROCESSORS, b"", cards.receive)
        for card in json.loads(cards.body)["data"]:
            if card["state"] != "quarantined":
                continue
            self.report.resets[card["name"]] += 1
            if card["name"] in HARMLESS:
                self._blame(f"a harmless processor is in quarantine: {card}")
            await client.exchange("POST", f"{PROCESSORS}/{card['name']}/reset", b"", Exchange().receive)

    async def _metrics(self) -> dict[str, float]:
        page = Exchange()
        await self._operator.exchange("GET", "metrics", b"", page.receive)
        prefix = "fastdeploy_lp:"
        parsed = parse_metrics(page.body.decode())
        return {name.removeprefix(prefix): value for name, value in parsed.items() if name.startswith(prefix)}

    async def _check_end(self) -> None:
        process = self._server.process
        if process is None or process.poll() is not None:
            self._blame("the server has ended")
            return
        if health(self._server.url) != 200:
            self._blame("the server is not ready at the end")
        metrics = await self._metrics()
        names = ("worker_restarts_total", "request_replays_total", "request_lost_total", "num_preemptions_total")
        self.report.metrics = {name: metrics[name] for name in names}
        # The operator misses preemptions after the last look, and just before the end of a worker.
        self.report.preemptions = max(self.report.preemptions, metrics["num_preemptions_total"])
        left = {
            name: metrics[name] for name in ("num_requests_running", "num_requests_waiting", "kv_cache_blocks_used")
        }
        if any(left.values()):
            self._blame(f"left over: {left}")

    def _blame(self, problem: str) -> None:
        self.report.problems.append(problem[:1500])


def keys() -> list[str]:
    """A key for each client: faults count over distinct ones."""
    return [f"key-{number}" for number in range(CLIENTS)]


async def post(client: Client, body: dict[str, Any], exchange: Exchange) -> None:
    """Send a body, and take what comes back into `exchange`."""
    await client.exchange("POST", CHAT, json.dumps(body).encode(), exchange.receive)


async def answer_to(client: Client, body: dict[str, Any]) -> Answer:
    """The answer that a body has."""
    exchange = Exchange()
    await post(client, body, exchange)
    return Answer.of(exchange)


def hostile_server(folder: Path, *, with_torch: bool) -> ServerProcess:
    """A tiny model with few slots and fewer blocks, the hostile processors, and two mandatory masks after them."""
    checkpoint, temporary = folder / "c", folder / "t"
    checkpoint.mkdir()
    temporary.mkdir()
    write_tiny_checkpoint(checkpoint, context=CONTEXT)
    declared = [spec for spec in DECLARED if with_torch or spec.rpartition(":")[2] not in NEED_TORCH]
    options = ["--logits-processors", *declared, "--mandatory", "plugin_mask", "VllmMask", "--vllm-compat"]
    options += ["--logits-processors-time-budget", str(TIME_BUDGET), "--step-timeout", str(STEP_TIMEOUT)]
    options += ["--max-worker-restarts", str(MAX_RESTARTS), "--api-key", *keys(), "--admin-api-key", ADMIN_KEY]
    options += ["--max-num-seqs", str(SLOTS), "--max-model-len", str(CONTEXT)]
    options += ["--block-size", str(BLOCK), "--num-gpu-blocks-override", str(BLOCKS)]
    environment = {"TMPDIR": str(temporary), "FASTDEPLOY_LP_PLUGINS": ""}
    return ServerProcess(*options, model=str(checkpoint), own_metrics_port=False, env=environment)


def run_hostile(
    folder: Path,
    count: int,
    seed: int,
    *,
    num_bodies: int = 30,
    slow: int = NUM_SLOW,
    with_torch: bool = True,
) -> Report:
    """A whole run in an empty folder.

    slow: hostile requests that cost the server seconds. with_torch: declare the processors that are written for torch,
    whose import makes each worker's start longer.
    """
    hostilities = deck(int(count * HOSTILE_SHARE), seed, slow=slow, with_torch=with_torch)
    with hostile_server(folder, with_torch=with_torch) as server:
        report = asyncio.run(HostileRun(server, seed).run(healthy_bodies(num_bodies, seed), hostilities, count))
        if not report.is_clean:
            print("\n".join(line for line in server.log.splitlines() if " INFO " not in line)[-6000:], file=sys.stderr)
    return report


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; 1 when a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1000, help="how many (default: %(default)d)")
    parser.add_argument("--seed", type=int, default=0, help="of everything random (default: 0)")
    slow = "hostile requests that cost seconds each (default: %(default)d)"
    parser.add_argument("--slow", type=int, default=NUM_SLOW, help=slow)
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="h-") as folder:
        report = run_hostile(Path(folder), args.requests, args.seed, slow=args.slow)
    print(json.dumps(vars(report), indent=1))
    return int(not report.is_clean)


if __name__ == "__main__":
    sys.exit(main())
