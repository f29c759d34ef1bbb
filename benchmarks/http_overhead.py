"""HTTP overhead of a streamed token: the real server and client with a worker that computes nothing.

A worker that sends one token a request and step (`canned_worker.py`) replaces the engine; its tokens encode
the step in which they were sent. Reports the time from a worker's message to the event at the client, for every token,
the same divided among the tokens of a step, and the API process's processor time per token. Admission of a long prompt
(validation of the body, chat template, tokens, checks) is timed in this process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from bisect import bisect_right
from collections import defaultdict
from pathlib import Path
from typing import Any

from fastdeploy_lp.engine.prepare.input_processor import InputProcessor
from fastdeploy_lp.engine.tokenizer import Tokenizer
from fastdeploy_lp.entrypoints.bench.http_client import Client, HTTPClientError
from fastdeploy_lp.entrypoints.bench.load import SSEDecoder, percentile
from fastdeploy_lp.entrypoints.declare import declare
from fastdeploy_lp.entrypoints.openai.protocol.chat import ChatCompletionRequest
from fastdeploy_lp.logits_processor import RequestArgsValidator

WORDS = ["Rain", "fell", "on", "the", "harbour;", "nobody", "had", "seen", "12", "boats", "leave,", "née", "天气"]
HERE = Path(__file__).parent


class TokenTimes:
    """Notes when each text of one stream arrived."""

    def __init__(self) -> None:
        self.arrived: list[tuple[float, int]] = []
        self._decoder = SSEDecoder()

    def receive(self, status: int, body: bytes) -> None:
        """Takes a piece of the body; raises ValueError for an answer that is none."""
        now = time.perf_counter()
        if status != 200:
            raise ValueError(f"HTTP {status}: {body.decode(errors='replace')}")
        for payload in self._decoder.feed(body):
            if payload == "[DONE]":
                continue
            for choice in json.loads(payload)["choices"]:
                self.arrived += [(now, int(digit)) for digit in choice["delta"].get("content") or ""]


async def run_load(port: int, concurrency: int, tokens: int) -> tuple[list[TokenTimes], float]:
    """`concurrency` streams side by side, each of `tokens` tokens; with the seconds that they took."""
    client = Client(f"http://127.0.0.1:{port}/v1", {})
    body = {"messages": [{"role": "user", "content": "Hi"}], "stream": True, "max_tokens": tokens, "ignore_eos": True}
    streams = [TokenTimes() for _ in range(concurrency)]
    data = json.dumps(body).encode()
    started = time.perf_counter()
    await asyncio.gather(*(client.exchange("POST", "chat/completions", data, each.receive) for each in streams))
    seconds = time.perf_counter() - started
    await client.close()
    return streams, seconds


def delays(streams: list[TokenTimes], sent: list[float]) -> tuple[list[float], list[float]]:
    """Seconds from a step's message to each token's event, and to the step's last event shared among its tokens.

    A stream's first token is left out: it waits for the request's admission.
    """
    each: list[float] = []
    of_step: dict[int, list[float]] = defaultdict(list)
    for stream in streams:
        for arrived, digit in stream.arrived[1:]:
            latest = bisect_right(sent, arrived) - 1
            step = latest - (latest - digit) % 10
            each.append(arrived - sent[step])
            of_step[step].append(arrived - sent[step])
    return each, [max(step) / len(step) for step in of_step.values()]


def processor_seconds(pid: int) -> float:
    """Time that a process's threads have run; the kernel's own account, since ticks are too coarse for this."""
    accounts = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(account.read_text().split()[0]) for account in accounts) / 1e9


async def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Start server and canned worker, load them, and stop them."""
    with tempfile.TemporaryDirectory() as folder:
        steps = Path(folder) / "steps.json"
        environment = {
            **os.environ,
            "CANNED_STEPS": str(steps),
            "CANNED_STEP_SECONDS": str(args.step_ms / 1000),
        }
        command = [sys.executable, str(HERE / "canned_server.py"), args.model, str(args.port)]
        server = subprocess.Popen(command, env=environment)
        try:
            await until_served(args.port, server)
            await run_load(args.port, args.concurrency, 16)
            before = processor_seconds(server.pid)
            streams, seconds = await run_load(args.port, args.concurrency, args.tokens)
            used = processor_seconds(server.pid) - before
        finally:
            server.terminate()
            server.wait(30)
        sent = json.loads(steps.read_text())
    each, shared = delays(streams, sent)
    return {
        "concurrency": args.concurrency,
        "tokens": len(each),
        "tokens_per_s": len(each) / seconds,
        "api_process_us_per_token": 1e6 * used / len(each),
        "share_of_step_us_per_token": {f"p{q}": 1e6 * percentile(shared, q) for q in (50, 99)},
        "message_to_event_us": {f"p{q}": 1e6 * percentile(each, q) for q in (50, 99)},
    }


def admission_ms(model: str, prompt_tokens: int, repeats: int) -> dict[str, float]:
    """Milliseconds from a body's bytes to a request that is ready to be sent to the worker."""
    setup = declare(model, ["LogitBiasLogitsProcessor"], {})
    config = setup.fd_config.model_config
    tokenizer = Tokenizer(Path(config.directory))
    inputs = InputProcessor(config, tokenizer, RequestArgsValidator(setup.declared, config.vocab_size))
    words = tokenizer.decode(tokenizer.encode(" ".join(WORDS * prompt_tokens))[:prompt_tokens])
    message = {"role": "user", "content": words}
    biases = {str(token): 1.0 for token in range(100, 108)}
    body = json.dumps({"messages": [message], "max_tokens": 16, "logits_processors_args": {"logit_bias": biases}})
    taken = []
    for _ in range(repeats):
        started = time.perf_counter()
        request = ChatCompletionRequest.model_validate(json.loads(body))
        prompt = inputs.chat_prompt([each.model_dump(exclude_none=True) for each in request.messages])
        inputs.settle(request.sampling_params(), prompt)
        taken.append(1000 * (time.perf_counter() - started))
    return {"tokens": len(prompt.token_ids), "p50": percentile(taken, 50), "p99": percentile(taken, 99)}


async def until_served(port: int, server: subprocess.Popen[bytes]) -> None:
    """Wait for the port; raises RuntimeError when the server ends instead."""
    client = Client(f"http://127.0.0.1:{port}", {})
    for _ in range(600):
        try:
            await client.exchange("GET", "health", b"", lambda _status, _body: None)
        except (OSError, HTTPClientError):
            if server.poll() is not None:
                raise RuntimeError(f"the server ended with status {server.returncode}") from None
            await asyncio.sleep(0.05)
        else:
            await client.close()
            return
    raise RuntimeError("the server does not answer")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m", help="whose tokenizer is used (default: %(default)s)")
    parser.add_argument("--concurrency", type=int, default=32, help="streams at a time (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=512, help="tokens a stream (default: %(default)s)")
    parser.add_argument("--step-ms", type=float, default=15.0, help="pace of the worker (default: %(default)s)")
    parser.add_argument("--port", type=int, default=18941, help="port to use (default: %(default)s)")
    parser.add_argument("--smoke", action="store_true", help="4 streams of 32 tokens")
    args = parser.parse_args()
    if args.smoke:
        args.concurrency, args.tokens = 4, 32
    report = asyncio.run(measure(args))
    report["admission_ms"] = admission_ms(args.model, 1900, 20 if args.smoke else 200)
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
