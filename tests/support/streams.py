"""Streamed answers to compare: bodies, their token texts, and the answers without what differs from run to run.

`python tests/support/streams.py` writes `tests/data/streams.json` by the code of this checkout.
"""

from __future__ import annotations

import asyncio
import json
import re
import tempfile
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.idle_engine import Client
from support.told_engine import Told, step_of, told

GOLDEN = Path(__file__).parents[1] / "data" / "streams.json"
HI = [{"role": "user", "content": "Hi"}]
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "sky"}}\n</tool_call>'
USAGE = {"stream_options": {"include_usage": True}}
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


@dataclass(frozen=True)
class StreamCase:
    """A body that is answered with these texts, one a sequence; `fails_at` is the step of an error of the worker."""

    path: str
    fields: dict[str, Any]
    texts: tuple[str, ...] = ('The "rain"\n fell — née 天气 \U0001f600.',)
    fails_at: int | None = None
    messages: bool = field(default=True)

    @property
    def body(self) -> bytes:
        """The body."""
        given = {"messages": HI} if self.messages else {}
        return json.dumps(
            {**given, "stream": True, "request_id": "golden", "model": "tiny-llama", **self.fields}
        ).encode()

    @property
    def logprobs(self) -> bool:
        """True if the worker's steps have logprobs."""
        return "logprobs" in self.fields or "include" in self.fields


CASES = {
    "chat": StreamCase(CHAT, {}),
    "chat, usage": StreamCase(CHAT, USAGE),
    "chat, continuous usage": StreamCase(
        CHAT, {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    ),
    "chat, two answers of other lengths": StreamCase(CHAT, {"n": 2, **USAGE}, ("Rain fell.", "Nobody had seen it.")),
    "chat, logprobs": StreamCase(CHAT, {"logprobs": True, "top_logprobs": 1}),
    "chat, token ids": StreamCase(CHAT, {"return_token_ids": True}),
    "chat, stop string": StreamCase(CHAT, {"stop": ["fell by"]}, ("Rain fell and fell by night.",)),
    "chat, tools": StreamCase(CHAT, {"tools": [TOOL], **USAGE}, (f"I look.{CALL}",)),
    "chat, reasoning": StreamCase(CHAT, USAGE, ("<think>So it is.</think>Rain.",)),
    "chat, the worker fails": StreamCase(CHAT, USAGE, fails_at=3),
    "completions": StreamCase(TEXT, {"prompt": "Once", **USAGE}, messages=False),
    "completions, two prompts of two": StreamCase(
        TEXT, {"prompt": ["Once", "Twice"], "n": 2}, ("Rain.", "Snow fell.", "It was so.", "Ice."), messages=False
    ),
    "completions, echo with logprobs": StreamCase(TEXT, {"prompt": "Once", "logprobs": 1}, messages=False),
    "completions, echo": StreamCase(TEXT, {"prompt": "Once", "echo": True}, messages=False),
    "completions, the worker fails": StreamCase(TEXT, {"prompt": "Once"}, fails_at=2, messages=False),
    "messages": StreamCase("/v1/messages", {"max_tokens": 99}),
    "messages, tools": StreamCase(
        "/v1/messages",
        {"max_tokens": 99, "tools": [{"name": "look", "input_schema": {"type": "object"}}]},
        (f"I look.{CALL}",),
    ),
    "messages, the worker fails": StreamCase("/v1/messages", {"max_tokens": 99}, fails_at=2),
    "responses": StreamCase("/v1/responses", {"input": "Hi"}, messages=False),
    "responses, reasoning": StreamCase(
        "/v1/responses", {"input": "Hi"}, ("<think>So it is.</think>Rain.",), messages=False
    ),
    "responses, the worker fails": StreamCase("/v1/responses", {"input": "Hi"}, fails_at=2, messages=False),
}
CHANGING = [
    (re.compile(r'"(created|created_at|completed_at)":[0-9.]+'), r'"\1":0'),
    (re.compile(r'"(msg|rs|fc|call|toolu)_[0-9a-f]+"'), r'"\1_0"'),
    (re.compile(r'"request_id":"[0-9a-f]+"'), '"request_id":"0"'),
]


def comparable(answer: bytes) -> str:
    """The answer without times and random ids."""
    text = answer.decode()
    for pattern, constant in CHANGING:
        text = pattern.sub(constant, text)
    return text


async def steps(running: Told, case: StreamCase, before: int, begun: Awaitable[None]) -> None:
    """Tells the worker every step of a case, whose sequences follow `before` others; each gets a token in each.

    begun: ends when the answer has begun. A token from before would share an event with the next one.
    """
    await begun
    names = [each.request_id for each in (await running.worker.wait_for(before + len(case.texts)))[before:]]
    texts = [running.tokens(text) for text in case.texts]
    for place in range(max(map(len, texts))):
        if place == case.fails_at:
            await running.worker.step(*(_failure(name) for name in names))
            return
        await running.worker.step(
            *(
                step_of(name, tokens, place, logprobs=case.logprobs)
                for name, tokens in zip(names, texts, strict=True)
                if place < len(tokens)
            )
        )


def _failure(name: str) -> Any:
    step = step_of(name, [0], 0)
    step.token_ids, step.finish_reason, step.error = [], None, "a processor failed"
    return step


Ask = Callable[[Told, StreamCase], Coroutine[Any, Any, bytes]]


async def answers(ask: Ask) -> dict[str, str]:
    """The answer of every case, each asked for by `ask`, in one server."""
    found: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        async with told(Path(folder)) as running:
            for name, case in CASES.items():
                found[name] = comparable(await ask(running, case))
    return found


async def over_asgi(running: Told, case: StreamCase) -> bytes:
    """The answer over plain ASGI, as on other servers."""
    before = len(running.worker.sequences)
    client = Client(running.app, case.path, case.body)
    telling = asyncio.create_task(steps(running, case, before, client.begun()))
    status, content = await client.answer()
    if status != 200:
        telling.cancel()
        raise RuntimeError(f"{status}: {content.decode()}")
    await telling
    return content


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(asyncio.run(answers(over_asgi)), indent=1, ensure_ascii=False) + "\n")
