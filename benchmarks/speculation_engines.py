"""Engines that `speculation.py` compares: they answer batches of prompts. Ours, and the server of llama.cpp."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from peers.contender import llama_contender
from peers.server_process import ServerProcess
from speculation_tasks import Prompt

from fastdeploy_lp import LLM, SamplingParams
from fastdeploy_lp.entrypoints.bench.http_client import Client, HTTPClientError
from fastdeploy_lp.request.guided_decoding import GuidedDecodingParams
from fastdeploy_lp.request.outputs import NO_DRAFTS, DraftedTokens

START_SECONDS = 120.0


@dataclass(frozen=True)
class Answers:
    """Answers to a batch of prompts, as token ids or texts, with their number of tokens and draft tokens."""

    contents: list[Sequence[int] | str]
    num_tokens: int
    drafted: DraftedTokens


class Engine(Protocol):
    """Answers prompts greedily, with at most `max_tokens` tokens each; computes a prompt again each time."""

    def takes(self, prompt: Prompt) -> bool:
        """Returns True if it knows the prompt's parameters."""
        ...

    def answer(self, batch: Sequence[Prompt], max_tokens: int) -> Answers:
        """Answers all prompts together."""
        ...


class OurEngine:
    """Our engine, offline."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm

    def takes(self, prompt: Prompt) -> bool:  # noqa: ARG002 - it knows all
        """See `Engine`."""
        return True

    def answer(self, batch: Sequence[Prompt], max_tokens: int) -> Answers:
        """See `Engine`."""
        params = [SamplingParams(temperature=0, max_tokens=max_tokens, **each.params) for each in batch]
        conversations = [[{"role": "user", "content": each.text}] for each in batch]
        outputs = self._llm.chat(conversations, params, use_tqdm=False)
        tokens = [list(output.outputs.token_ids) for output in outputs]
        drafted = sum((output.drafted for output in outputs), NO_DRAFTS)
        return Answers([*tokens], sum(map(len, tokens)), drafted)


class LlamaEngine:
    """llama.cpp's server in a `with` block; raises ServerError where it does not start.

    binary, gguf: program and model. options: further options of the program, such as those about drafts.
    """

    def __init__(self, binary: str, gguf: Path, options: Sequence[str]) -> None:
        contender = llama_contender(binary, gguf, "")
        self._server = ServerProcess(replace(contender, command=(*contender.command, *options)), START_SECONDS)

    def __enter__(self) -> LlamaEngine:
        self._server.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.__exit__(kind, error, at)

    def takes(self, prompt: Prompt) -> bool:
        """See `Engine`: it knows schemas; a predicted output only helps drafts, and is left out."""
        return all(_is_schema(value) or name == "prediction" for name, value in prompt.params.items())

    def answer(self, batch: Sequence[Prompt], max_tokens: int) -> Answers:
        """See `Engine`; raises HTTPClientError for a request that fails."""
        bodies = asyncio.run(self._exchange([llama_request(each, max_tokens) for each in batch]))
        return llama_answers(bodies)

    async def _exchange(self, requests: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        client = Client(f"{self._server.url}/v1", {})
        try:
            return await asyncio.gather(*(_post(client, request) for request in requests))
        finally:
            await client.close()


def llama_request(prompt: Prompt, max_tokens: int) -> dict[str, Any]:
    """Returns the body of a chat for llama.cpp's server, of a prompt that it takes."""
    message = {"role": "user", "content": prompt.text}
    body: dict[str, Any] = {"messages": [message], "max_tokens": max_tokens, "temperature": 0, "cache_prompt": False}
    for schema in (value.json for value in prompt.params.values() if _is_schema(value)):
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    return body


def llama_answers(bodies: Sequence[dict[str, Any]]) -> Answers:
    """Returns the answers of chats; a server without drafts counts none."""
    contents = [body["choices"][0]["message"]["content"] for body in bodies]
    timings = [body.get("timings", {}) for body in bodies]
    drafted = [DraftedTokens(each.get("draft_n", 0), each.get("draft_n_accepted", 0)) for each in timings]
    return Answers(contents, sum(body["usage"]["completion_tokens"] for body in bodies), sum(drafted, NO_DRAFTS))


def _is_schema(value: object) -> bool:
    return isinstance(value, GuidedDecodingParams) and isinstance(value.json, dict)


async def _post(client: Client, request: dict[str, Any]) -> dict[str, Any]:
    received, statuses = bytearray(), set[int]()

    def receive(status: int, piece: bytes) -> None:
        statuses.add(status)
        received.extend(piece)

    await client.exchange("POST", "chat/completions", json.dumps(request).encode(), receive)
    if statuses != {200}:
        raise HTTPClientError(f"HTTP {statuses}: {received.decode(errors='replace')}")
    body: dict[str, Any] = json.loads(received)
    return body
