"""Sends a server bodies and bytes that nobody should send, and tells what it did not bear.

    python tests/reliability/fuzz_http.py --bodies 20000 --raw 2000 --seed 1

starts servers on a tiny model by itself, one of each configuration. Each failure has the number by which its bytes can
be had again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from reliability.hostile_bodies import KEYS, HostileBody, hostile_body
from reliability.malformed_http import malformed_request
from support.server import ServerProcess
from support.tiny import write_tiny_checkpoint

CONNECTIONS = 8
ANSWER_SECONDS = 60.0
# A server may wait for the rest of a request that has none; that it closes is not asked for.
RAW_SECONDS = 0.5
# Types of the events with which streams end.
LAST_EVENTS = {"[DONE]", "response.completed", "response.incomplete", "response.failed", "message_stop", "error"}
OPTIONS = ["--max-model-len", "64", "--max-num-seqs", "8"]
LOGIT_BIAS = ["--logits-processors", "LogitBiasLogitsProcessor"]
CONFIGURATIONS: dict[str, list[str]] = {
    "plain": LOGIT_BIAS,
    "token ids": [*LOGIT_BIAS, "--skip-tokenizer-init"],
    "policy": [
        *LOGIT_BIAS,
        "AllowedTokensLogitsProcessor",
        "NoRepeatNGramLogitsProcessor",
        *("--mandatory", "AllowedTokensLogitsProcessor"),
        *("--shadow", "NoRepeatNGramLogitsProcessor"),
        *("--api-key", *KEYS[:2]),
        *("--fair-queue", "--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--max-waiting-requests", "64"),
    ],
}


@dataclass
class FuzzReport:
    """Statuses of answers, None where there was none, and what was no answer that a client may get."""

    statuses: Counter[int | None] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        counts = ", ".join(f"{status}: {count}" for status, count in sorted(self.statuses.items(), key=str))
        return "\n".join([f"statuses: {counts}", *self.failures[:20], f"{len(self.failures)} failures"])


def fuzz_server(checkpoint: Path, configuration: str) -> ServerProcess:
    """A server of one of CONFIGURATIONS on a tiny model with a short context."""
    options = [*CONFIGURATIONS[configuration], *OPTIONS]
    return ServerProcess(*options, model=str(checkpoint), own_metrics_port=False)


def send_bodies(port: int, seed: int, numbers: Sequence[int]) -> FuzzReport:
    """Send these bodies over a few connections that are kept open."""
    report = FuzzReport()
    shares = [numbers[place::CONNECTIONS] for place in range(CONNECTIONS)]
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        for part in pool.map(lambda share: _send_share(port, seed, share), shares):
            report.statuses += part.statuses
            report.failures += part.failures
    return report


def _send_share(port: int, seed: int, numbers: Sequence[int]) -> FuzzReport:
    report = FuzzReport()
    connection = HTTPConnection("127.0.0.1", port, timeout=ANSWER_SECONDS)
    for number in numbers:
        body = hostile_body(seed, number)
        try:
            connection.request(body.method, body.path, body.content, body.headers)
            answer = connection.getresponse()
            content = answer.read()
        except (OSError, HTTPException) as error:
            report.failures.append(f"body {number}: no answer: {error!r}")
            report.statuses[None] += 1
            connection.close()
            continue
        report.statuses[answer.status] += 1
        problem = _problem(body.method, body.path, answer.status, answer.getheader("content-type", ""), content)
        if problem:
            report.failures.append(f"body {number}: {body.method} {body.path}: {problem}: {body.content[:300]!r}")
    connection.close()
    return report


def _problem(method: str, path: str, status: int, content_type: str, content: bytes) -> str | None:
    """What is wrong with an answer; None for one that a client may get."""
    if status >= 500:
        return f"status {status}: {content[:300]!r}"
    if content_type.startswith("text/event-stream"):
        return _problem_of_stream(content)
    # SageMaker's health check is answered without a body.
    empty = path == "/ping" and status == 200
    if empty or status == 307 or (method != "POST" and (status < 400 or method == "HEAD")):
        return None
    try:
        parsed = json.loads(content)
    except ValueError:
        return f"status {status} without JSON: {content[:300]!r}"
    if status >= 400 and not isinstance(parsed.get("error", {}).get("message"), str):
        return f"status {status} without an error: {content[:300]!r}"
    return None


def _problem_of_stream(content: bytes) -> str | None:
    events = [event.rpartition(b"data: ")[2] for event in content.split(b"\n\n") if event]
    parsed = [{"type": "[DONE]"} if event == b"[DONE]" else json.loads(event) for event in events]
    if not parsed or parsed[-1].get("type") not in LAST_EVENTS:
        return f"a stream without an end: {content[-300:]!r}"
    faults = {"server_error", "api_error"}
    errors = [event for event in parsed if faults & {_of_error(event, "type"), _of_error(event, "code")}]
    return f"a fault in a stream: {errors[0]!r}" if errors else None


def _of_error(event: dict[str, Any], name: str) -> Any:
    """A field of an event's error: of OpenAI's chats, or of a response."""
    return ((event.get("response") or event).get("error") or {}).get(name)


async def send_raw(port: int, seed: int, numbers: Sequence[int]) -> FuzzReport:
    """Each on a connection of its own, and of every other one the sending half is closed behind it."""
    report = FuzzReport()
    turns = asyncio.Semaphore(4 * CONNECTIONS)

    async def send(number: int) -> None:
        async with turns:
            answer = await _raw_answer(port, malformed_request(seed, number), hang_up=number % 2 == 0)
        statuses = _statuses(answer)
        report.statuses.update(statuses or [None])
        if any(status >= 500 for status in statuses):
            report.failures.append(f"raw {number}: {answer[:300]!r}")

    await asyncio.gather(*(send(number) for number in numbers))
    return report


async def _raw_answer(port: int, request: bytes, *, hang_up: bool) -> bytes:
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return b"HTTP/1.1 599 nobody listens\r\n"
    answer = bytearray()
    try:
        writer.write(request)
        await writer.drain()
        if hang_up:
            writer.write_eof()
        while block := await asyncio.wait_for(reader.read(1 << 16), RAW_SECONDS):
            answer += block
    except (OSError, asyncio.TimeoutError):
        return bytes(answer)
    finally:
        writer.close()
    return bytes(answer)


def _statuses(answer: bytes) -> list[int]:
    """Of every answer on the connection; bodies hold no line that looks like one."""
    lines = [line for line in answer.split(b"\r\n") if line.startswith(b"HTTP/1.")]
    return [int(line.split()[1]) for line in lines]


def main() -> int:
    """Status 0 when the server bore everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bodies", type=int, default=20_000, help="changed bodies for each (default: 20000)")
    parser.add_argument("--raw", type=int, default=2_000, help="malformed requests for each (default: 2000)")
    parser.add_argument("--seed", type=int, default=1, help="what they depend on (default: 1)")
    parser.add_argument("--configuration", action="append", choices=CONFIGURATIONS, help="of the server (default: all)")
    parser.add_argument("--show", type=int, help="print the body of this number and end")
    args = parser.parse_args()
    if args.show is not None:
        body: HostileBody = hostile_body(args.seed, args.show)
        print(body.method, body.path, body.headers, body.content)
        return 0
    failed = [_run(configuration, args) for configuration in args.configuration or CONFIGURATIONS]
    return 1 if any(failed) else 0


def _run(configuration: str, args: argparse.Namespace) -> bool:
    """Whether a server of this configuration did not bear everything."""
    with (
        tempfile.TemporaryDirectory() as folder,
        fuzz_server(write_tiny_checkpoint(Path(folder)), configuration) as server,
    ):
        bodies = send_bodies(server.port, args.seed, range(args.bodies))
        raw = asyncio.run(send_raw(server.port, args.seed, range(args.raw)))
        print(f"{configuration}, seed {args.seed}\nbodies: {bodies}\nraw: {raw}")
        traces = server.log.count("Traceback")
        print(f"{traces} tracebacks in the log", flush=True)
        if traces:
            print(server.log[server.log.index("Traceback") - 1000 :][:5000])
    return bool(bodies.failures or raw.failures or traces)


if __name__ == "__main__":
    raise SystemExit(main())
