"""Seconds for which the API process's event loop stands still while a hostile body is handled.

`python benchmarks/loop_lag.py --model DIRECTORY` starts an engine in this process, sends each body through the
server's own application, and prints the longest pause of a callback that is due every millisecond, the time to the
answer, its status and the growth of this process's memory. The pauses of a calm second are the machine's own.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastdeploy_lp.engine.client.data_parallel import make_engine
from fastdeploy_lp.entrypoints.batch.runner import exchange
from fastdeploy_lp.entrypoints.declare import declare_engine
from fastdeploy_lp.entrypoints.openai.app import build_app
from fastdeploy_lp.entrypoints.openai.server_args import ServerArgs
from fastdeploy_lp.startup.engine_args import EngineArgs

TICK = 0.001
COMPLETIONS, CHAT, TOKENIZE, DETOKENIZE, EMBEDDINGS = (
    *("/v1/completions", "/v1/chat/completions"),
    *("/tokenize", "/detokenize", "/v1/embeddings"),
)
WORDS = [f"w{index:05}" for index in range(4096)]
LONG_WORDS = ["xyzzy " * 41 + str(index % 10) for index in range(4096)]


def _completion(**fields: Any) -> bytes:
    return json.dumps({"prompt": "a", "max_tokens": 1, **fields}).encode()


def _chat(**fields: Any) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": "a"}], "max_tokens": 1, **fields}).encode()


def _flat(count: int, text: str) -> bytes:
    return b'{"prompt":[' + b",".join([text.encode()] * count) + b"]}"


BODIES: dict[str, tuple[str, Callable[[], bytes]]] = {
    "a small request": (COMPLETIONS, _completion),
    "2,048 prompts, 4,096 bad words of 247 characters": (
        COMPLETIONS,
        lambda: _completion(prompt=["a"] * 2048, bad_words=LONG_WORDS),
    ),
    "32 prompts, 4,096 short bad words": (COMPLETIONS, lambda: _completion(prompt=["a"] * 32, bad_words=WORDS)),
    "4,096 short bad words": (COMPLETIONS, lambda: _completion(bad_words=WORDS)),
    "n=128, 983,000 bad_words_token_ids": (
        COMPLETIONS,
        lambda: _completion(n=128, bad_words_token_ids=[[1] * 2000] * 491),
    ),
    "983,000 bad_words_token_ids": (COMPLETIONS, lambda: _completion(bad_words_token_ids=[[1] * 2000] * 491)),
    "256 prompts, 256 allowed_token_ids x 192": (
        COMPLETIONS,
        lambda: _completion(prompt=["a"] * 256, allowed_token_ids=list(range(200)) * 1),
    ),
    "2,000 prompts, 250 logit_bias": (
        COMPLETIONS,
        lambda: _completion(prompt=["a"] * 2000, logit_bias={str(i): 1.0 for i in range(250)}),
    ),
    "n=31, 16,384 matching lists": (
        COMPLETIONS,
        lambda: _completion(n=31, bad_words_token_ids=[[1, 2, 3]] * 16_384, max_tokens=4),
    ),
    "2,048 prompts": (COMPLETIONS, lambda: _completion(prompt=["a"] * 2048)),
    "32 prompts, n=128": (COMPLETIONS, lambda: _completion(prompt=["a"] * 32, n=128)),
    "a prompt of 1,000,000 tokens": (COMPLETIONS, lambda: _flat(999_000, "17")),
    "2,048 prompts of 480 tokens": (COMPLETIONS, lambda: _completion(prompt=[[17] * 480] * 2048)),
    "a prompt of 990,000 texts": (COMPLETIONS, lambda: _flat(990_000, '"a"')),
    "a prompt of 990,000 empty lists": (COMPLETIONS, lambda: _flat(990_000, "[]")),
    "5,000,000 empty texts": (COMPLETIONS, lambda: _flat(5_000_000, '""')),
    "15 MB of one text": (COMPLETIONS, lambda: _completion(prompt="a b, " * 3_000_000)),
    "a text as long as the context allows": (COMPLETIONS, lambda: _completion(prompt="quick fox " * 200_000)),
    "60,000 arguments": (
        COMPLETIONS,
        lambda: _completion(logits_processors_args={"x": [[1]] * 30_000}),
    ),
    "16,000 messages": (CHAT, lambda: _chat(messages=[{"role": "user", "content": "a"}] * 16_000)),
    "1,000 tools": (
        CHAT,
        lambda: _chat(
            tools=[
                {"type": "function", "function": {"name": f"f{i}", "parameters": {"a": [1] * 60}}} for i in range(999)
            ]
        ),
    ),
    "embeddings of 2,048 texts of 6,000 characters": (
        EMBEDDINGS,
        lambda: json.dumps({"input": ["quick fox " * 600] * 2048}).encode(),
    ),
    "/tokenize 15 MB, token_strs": (
        TOKENIZE,
        lambda: json.dumps({"prompt": "a b, " * 3_000_000, "return_token_strs": True}).encode(),
    ),
    "/tokenize 250 KB, token_strs": (
        TOKENIZE,
        lambda: json.dumps({"prompt": "a b, " * 50_000, "return_token_strs": True}).encode(),
    ),
    "/detokenize 900,000 tokens": (DETOKENIZE, lambda: json.dumps({"tokens": [65] * 900_000}).encode()),
    "/detokenize 100,000 tokens": (DETOKENIZE, lambda: json.dumps({"tokens": [65] * 100_000}).encode()),
}


@dataclass
class Lag:
    """The longest pause of a callback that is due every `TICK` seconds."""

    worst: float = 0.0

    async def watch(self) -> None:
        """Measures until cancelled."""
        while True:
            before = time.perf_counter()
            await asyncio.sleep(TICK)
            self.worst = max(self.worst, time.perf_counter() - before - TICK)


def resident() -> int:
    """Bytes of this process's memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


async def measure(app: Any, name: str, path: str, body: bytes, limit: float) -> None:
    """Sends one body and print a line."""
    lag, before = Lag(), resident()
    watching = asyncio.create_task(lag.watch())
    began = time.perf_counter()
    try:
        answer = await asyncio.wait_for(exchange(app, path, body), limit)
        said = f"{answer.status} {answer.body[:150].decode(errors='replace') if answer.status != 200 else ''}"
    except asyncio.TimeoutError:
        said = f"no answer in {limit:g} s"
    seconds = time.perf_counter() - began
    await asyncio.sleep(0.05)
    watching.cancel()
    grown = (resident() - before) / (1 << 20)
    print(f"{name:50} lag {lag.worst * 1000:9.1f} ms  {seconds:7.2f} s  {grown:+7.0f} MB  {said}", flush=True)


async def run(args: argparse.Namespace) -> None:
    """Measures every body on one engine."""
    options = EngineArgs(model=args.model, max_model_len=args.max_model_len, logits_processors=[args.processor])
    setup = declare_engine(options)
    engine = make_engine(setup.fd_config, setup.declared, setup.stat_loggers)
    try:
        await engine.start()
        # As the server does once it is ready.
        gc.collect()
        gc.freeze()
        app = build_app(engine, ServerArgs(api_key=[]), setup.io_processor)
        for name, (path, made) in BODIES.items():
            if args.only in name:
                await measure(app, name, path, made(), args.limit)
    finally:
        await engine.shutdown()


def main() -> None:
    """Parse options and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--max-model-len", type=int, default=2048)
    parser.add_argument("--processor", default="LogitBiasLogitsProcessor")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds a body may take")
    parser.add_argument("--only", default="", help="bodies whose name holds this")
    args = parser.parse_args()
    logging.disable(logging.INFO)
    asyncio.run(run(args))


if __name__ == "__main__":
    main()
