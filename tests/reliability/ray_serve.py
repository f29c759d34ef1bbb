"""Two replicas on Ray Serve while one is killed and an update changes their chain: is anything lost or answered twice?

`PYTHONPATH=.:tests python -m reliability.ray_serve --requests 200` in the environment of `make test-ray` prints a
report as JSON; status 1 says that something was wrong. With `--routing` it compares routers by cache hits instead.
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
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import openai
from reliability.ray_cluster import RayCluster
from support.tiny import write_tiny_checkpoint

CONCURRENCY = 8
CONTEXT = 4096
PROMPTS = 10
LENGTHS = (16, 64, 600)
NAME = "tiny"
BIAS, MIN_TOKENS = "LogitBiasLogitsProcessor", "MinTokensLogitsProcessor"
# Of a stream that had begun, or of a request whose second replica ended as well.
CLEAR_ERRORS = {"replica_lost", "worker_lost"}
WORDS = ("quick", "brown", "fox", "jumps", "over", "lazy", "dog", "sleeps", "while", "other", "animals", "look")


@dataclass
class Report:
    """What became of the requests; `problems` are what must not be."""

    requests: int = 0
    answered: int = 0
    streamed: int = 0
    clear_errors: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    in_flight_at_kill: int = 0
    in_flight_at_update: int = 0
    requests_during_update: int = 0
    update_seconds: float = 0.0


def model_args(model: str, *processors: str, **options: Any) -> dict[str, Any]:
    """Arguments of a replica with a tiny model."""
    sizes = {"max-model-len": CONTEXT, "max-num-seqs": 8}
    named = {name.replace("_", "-"): value for name, value in options.items()}
    return {"model": model, "served-model-name": NAME, "logits-processors": list(processors), **sizes, **named}


def connected(url: str) -> openai.AsyncOpenAI:
    """The client as programs make it, which sends nothing a second time."""
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="EMPTY_API_KEY", max_retries=0, timeout=300)


class Crowd:
    """Requests whose answers are known, sent while things happen."""

    def __init__(self, client: openai.AsyncOpenAI, report: Report, seed: int) -> None:
        self._client = client
        self._report = report
        self._source = random.Random(seed)
        self._known: dict[tuple[int, int], str] = {}
        self._ids: set[str] = set()
        self.in_flight = 0

    async def learn(self) -> None:
        """What each request's answer is in calm times."""
        for prompt in range(PROMPTS):
            for length in LENGTHS:
                answer = await self._client.chat.completions.create(**_body(prompt, length))
                self._known[prompt, length] = answer.choices[0].message.content

    async def send(self, count: int) -> None:
        """So many requests, some of them at a time; every other one is streamed."""
        left = iter(range(count))

        async def work() -> None:
            for number in left:
                prompt, length = self._source.randrange(PROMPTS), self._source.choice(LENGTHS)
                await self._check(prompt, length, stream=number % 2 == 0)

        await asyncio.gather(*(work() for _ in range(CONCURRENCY)))

    async def _check(self, prompt: int, length: int, *, stream: bool) -> None:
        report = self._report
        self.in_flight += 1
        try:
            text = await (self._read(prompt, length) if stream else self._whole(prompt, length))
        except openai.APIError as error:
            if error.code in CLEAR_ERRORS:
                report.clear_errors[error.code] = report.clear_errors.get(error.code, 0) + 1
            else:
                report.problems.append(f"{type(error).__name__}: {error}"[:300])
        else:
            report.answered += 1
            report.streamed += stream
            if text != self._known[prompt, length]:
                report.problems.append(f"another answer than in calm times: {text[:60]!r}, {len(text)} characters")
        finally:
            self.in_flight -= 1
            report.requests += 1

    async def _whole(self, prompt: int, length: int) -> str:
        answer = await self._client.chat.completions.create(**_body(prompt, length))
        self._note(answer.id)
        return answer.choices[0].message.content or ""

    async def _read(self, prompt: int, length: int) -> str:
        text, reasons, names = "", [], set()
        async for chunk in await self._client.chat.completions.create(**_body(prompt, length), stream=True):
            names.add(chunk.id)
            for choice in chunk.choices:
                text += choice.delta.content or ""
                reasons += [choice.finish_reason] if choice.finish_reason else []
        if reasons != ["length"] or len(names) != 1:
            self._report.problems.append(f"a stream ended with {reasons} and had the ids {names}")
        self._note(*names)
        return text

    def _note(self, *names: str) -> None:
        self._report.problems += [f"the id {name} was seen twice" for name in names if name in self._ids]
        self._ids |= set(names)


def _body(prompt: int, length: int) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"the quick brown fox {prompt}"}]
    extra = {"ignore_eos": True}
    return {"model": NAME, "messages": messages, "max_tokens": length, "temperature": 0, "extra_body": extra}


async def disturb(cluster: RayCluster, crowd: Crowd, report: Report, requests: int, updated: dict[str, Any]) -> None:
    """Kill a replica when a quarter is answered, and update all of them when half is."""
    while report.requests < requests // 4:
        await asyncio.sleep(0.02)
    report.in_flight_at_kill = crowd.in_flight
    os.kill(cluster.replica_pids()[0], signal.SIGKILL)
    while report.requests < requests // 2:
        await asyncio.sleep(0.02)
    began, before = time.monotonic(), report.requests
    report.in_flight_at_update = crowd.in_flight
    await asyncio.to_thread(cluster.deploy, updated)
    report.update_seconds = round(time.monotonic() - began, 1)
    report.requests_during_update = report.requests - before


async def run_crowd(cluster: RayCluster, model: str, requests: int, seed: int = 1) -> Report:
    """The whole of it, on a cluster where nothing is deployed; what the update takes longer, more are sent."""
    report = Report()
    first = model_args(model, BIAS)
    await asyncio.to_thread(cluster.deploy, first)
    async with connected(cluster.url) as client:
        crowd = Crowd(client, report, seed)
        await crowd.learn()
        updated = first | {"logits-processors": [BIAS, MIN_TOKENS]}
        disturbing = asyncio.create_task(disturb(cluster, crowd, report, requests, updated))
        await crowd.send(requests)
        while not disturbing.done():
            await crowd.send(CONCURRENCY)
        disturbing.result()
        for _ in range(8):
            chain = await client.get("/logits_processors", cast_to=dict[str, Any])
            names = [each["name"] for each in chain["data"]]
            if names != [BIAS, MIN_TOKENS]:
                report.problems.append(f"after the update a replica has the chain {names}")
    return report


@dataclass(frozen=True)
class Hits:
    """Prompt tokens of all turns but the first of each conversation, and those of them that were in a cache."""

    router: str
    prompt_tokens: int
    cached_tokens: int

    @property
    def rate(self) -> float:
        """Share of tokens that did not have to be computed."""
        return self.cached_tokens / self.prompt_tokens


async def measure_hits(cluster: RayCluster, model: str, router: str, talks: int, turns: int, seed: int = 1) -> Hits:
    """Conversations that grow, some at a time, over two replicas with a cache of 8,192 tokens each."""
    blocks = 1 + 2 * CONTEXT // 16
    args = model_args(model, request_router=router, num_gpu_blocks_override=blocks, max_num_seqs=32)
    await asyncio.to_thread(cluster.deploy, args)
    source, found = random.Random(seed), Counter[str]()
    places = asyncio.Semaphore(CONCURRENCY)

    async def talk(client: openai.AsyncOpenAI, number: int) -> None:
        messages: list[Any] = []
        for turn in range(turns):
            text = " ".join(source.choice(WORDS) for _ in range(40))
            messages.append({"role": "user", "content": f"{number}: {text}"})
            async with places:
                answer = await client.chat.completions.create(
                    model=NAME, messages=messages, max_tokens=16, temperature=0
                )
            messages.append({"role": "assistant", "content": answer.choices[0].message.content})
            if turn and answer.usage is not None and answer.usage.prompt_tokens_details is not None:
                cached = answer.usage.prompt_tokens_details.cached_tokens or 0
                found.update(prompt=answer.usage.prompt_tokens, cached=cached)

    async with connected(cluster.url) as client:
        await asyncio.gather(*(talk(client, number) for number in range(talks)))
    return Hits(router, found["prompt"], found["cached"])


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--routing", action="store_true", help="compare routers in place of killing replicas")
    parser.add_argument("--talks", type=int, default=24)
    parser.add_argument("--turns", type=int, default=8)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, RayCluster() as cluster:
        model = str(write_tiny_checkpoint(Path(folder), context=CONTEXT))
        if args.routing:
            for router in ("ray", "prefix"):
                hits = asyncio.run(measure_hits(cluster, model, router, args.talks, args.turns))
                print(json.dumps(asdict(hits) | {"rate": round(hits.rate, 3)}))
            return 0
        report = asyncio.run(run_crowd(cluster, model, args.requests))
    print(json.dumps(asdict(report), indent=2))
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
