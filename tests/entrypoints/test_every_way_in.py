"""The same random requests over HTTP, plain and streamed, through `LLM` and through `AsyncLLM` give the same answers.

FASTDEPLOY_LP_TEST_REQUESTS says how many requests are drawn (default: 60).
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import httpx
import pytest
from support.random_requests import RandomRequest, random_request
from support.server import ServerProcess
from support.tiny_checkpoint import write_tiny_checkpoint

from fastdeploy_lp import LLM, AsyncLLM, RequestOutput, RequestOutputKind, SamplingParams

COUNT = int(os.environ.get("FASTDEPLOY_LP_TEST_REQUESTS", "60"))
SEED = 20261122
SECONDS = 600.0
# Fewer slots than requests: some wait, and rows come and go all the time.
OPTIONS = {"max_num_seqs": 8, "max_num_batched_tokens": 64}
BIAS = "LogitBiasLogitsProcessor"
LEAST_LOGPROB = -9999.0

Position = tuple[str, float, dict[str, float]]


@dataclass
class Choice:
    """What every way in tells of one completion; a position holds the token's text, its logprob and the top ones."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: list[Position] | None = None


@dataclass
class Answer:
    """What every way in tells of one request; a refused one has nothing but the field at fault."""

    choices: list[Choice] = field(default_factory=list)
    prompt_tokens: int = 0
    completion_tokens: int = 0
    refused: str | None = None


@pytest.fixture(scope="module")
def requests() -> list[RandomRequest]:
    rng = Random(SEED)
    return [random_request(rng) for _ in range(COUNT)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def plain(model: str, requests: list[RandomRequest]) -> Iterator[tuple[list[Answer], list[Answer]]]:
    """The answers over HTTP, plain and streamed, all of them in flight at once."""
    options = [f"--{name.replace('_', '-')}={value}" for name, value in OPTIONS.items()]
    with ServerProcess(*options, "--logits-processors", BIAS, model=model) as server:
        yield asyncio.run(over_http(server.url, requests))


async def over_http(url: str, requests: Sequence[RandomRequest]) -> tuple[list[Answer], list[Answer]]:
    limits = httpx.Limits(max_connections=64)
    async with httpx.AsyncClient(base_url=f"{url}/v1", timeout=SECONDS, limits=limits) as client:
        whole = await asyncio.gather(*(post(client, each) for each in requests))
        streamed = await asyncio.gather(*(stream(client, each) for each in requests))
    return whole, streamed


def body_of(request: RandomRequest) -> tuple[str, dict[str, Any]]:
    """Path and body."""
    fields = {**request.fields, "return_token_ids": True}
    if not request.is_chat:
        return "completions", {"prompt": request.prompt, **fields}
    if "logprobs" in fields:
        fields |= {"top_logprobs": fields["logprobs"], "logprobs": True}
    return "chat/completions", {"messages": request.prompt, **fields}


async def post(client: httpx.AsyncClient, request: RandomRequest) -> Answer:
    path, body = body_of(request)
    return http_answer([await exchange(client, path, body)])


async def stream(client: httpx.AsyncClient, request: RandomRequest) -> Answer:
    """The pieces joined."""
    path, body = body_of(request)
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    parts: list[Any] = []
    async with client.stream("POST", path, json=body) as response:
        if response.status_code != httpx.codes.OK:
            return http_answer([json.loads(await response.aread())])
        payloads = [line.removeprefix("data: ") async for line in response.aiter_lines() if line]
    parts = [json.loads(payload) for payload in payloads[:-1]]
    assert payloads[-1] == "[DONE]"
    assert [part["choices"] for part in parts if part.get("usage")] == [[]]
    return http_answer(parts)


async def exchange(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> Any:
    response = await client.post(path, json=body)
    assert response.status_code in (200, 400), response.text
    return response.json()


def http_answer(parts: Sequence[dict[str, Any]]) -> Answer:
    if error := parts[0].get("error"):
        return Answer(refused=error["param"])
    choices: dict[int, Choice] = {}
    for each in (choice for part in parts for choice in part["choices"]):
        choice = choices.setdefault(each["index"], Choice())
        message = each.get("message") or each.get("delta") or each
        choice.text += message.get("content", each.get("text")) or ""
        choice.token_ids += each.get("token_ids") or []
        choice.finish_reason = each.get("finish_reason") or choice.finish_reason
        choice.stop_reason = each.get("stop_reason", choice.stop_reason)
        if each.get("logprobs") is not None:
            choice.logprobs = (choice.logprobs or []) + http_logprobs(each["logprobs"])
    (usage,) = [part["usage"] for part in parts if part.get("usage")]
    ordered = [choices[index] for index in range(len(choices))]
    return Answer(ordered, usage["prompt_tokens"], usage["completion_tokens"])


def http_logprobs(given: dict[str, Any]) -> list[Position]:
    if "content" in given:
        return [
            (each["token"], each["logprob"], by_text([(top["token"], top["logprob"]) for top in each["top_logprobs"]]))
            for each in given["content"]
        ]
    return list(zip(given["tokens"], given["token_logprobs"], given["top_logprobs"], strict=True))


def by_text(tokens: Sequence[tuple[str, float]]) -> dict[str, float]:
    """Of several tokens that read the same, the most likely one."""
    found: dict[str, float] = {}
    for text, logprob in sorted(tokens, key=lambda token: -token[1]):
        found.setdefault(text, logprob)
    return found


def offline_answer(output: RequestOutput, request: RandomRequest) -> Answer:
    choices = [
        Choice(
            each.text,
            each.token_ids,
            each.finish_reason,
            http_reason(each.stop_reason, request),
            offline_logprobs(each.logprobs, request),
        )
        for each in output.completions
    ]
    completion_tokens = sum(len(each.token_ids) for each in output.completions)
    return Answer(choices, len(output.prompt_token_ids), completion_tokens)


def http_reason(reason: int | str | None, request: RandomRequest) -> int | str | None:
    """As HTTP shows it: the model's own end is no reason."""
    return reason if isinstance(reason, str) or reason in request.fields.get("stop_token_ids", []) else None


def offline_logprobs(positions: Any, request: RandomRequest) -> list[Position] | None:
    """As HTTP shows them: a chat only the most likely ones, a completion the sampled one among them."""
    if positions is None:
        return None
    found: list[Position] = []
    for position in positions:
        tokens = [(each.decoded_token, max(each.logprob, LEAST_LOGPROB)) for each in position.values()]
        shown = sorted(tokens, key=lambda token: -token[1])[: request.fields["logprobs"]] if request.is_chat else tokens
        found.append((*tokens[0], by_text(shown)))
    return found


def refused(error: ValueError) -> Answer:
    """SamplingParams and requests name the field alike."""
    return Answer(refused=str(error).partition(":")[0])


def through_llm(llm: LLM, requests: Sequence[RandomRequest]) -> list[Answer]:
    """All that can be served in one call for each kind of prompt; the refused ones on their own."""
    answers: dict[int, Answer] = {}
    served: dict[bool, list[tuple[int, Any, SamplingParams]]] = {True: [], False: []}
    for index, request in enumerate(requests):
        try:
            params = SamplingParams(**request.fields)
            if request.fields["max_tokens"] > 1000 or 512 in request.fields.get("stop_token_ids", []):
                llm.generate([1, 2], params)
            served[request.is_chat].append((index, request.prompt, params))
        except ValueError as error:
            answers[index] = refused(error)
    for is_chat, triples in served.items():
        indices, prompts, params_list = ([triple[part] for triple in triples] for part in range(3))
        run = llm.chat if is_chat else llm.generate
        outputs = run(prompts, params_list, use_tqdm=False)  # type: ignore[operator]
        for index, output in zip(indices, outputs, strict=True):
            answers[index] = offline_answer(output, requests[index])
    return [answers[index] for index in range(len(requests))]


async def through_async_llm(model: str, requests: Sequence[RandomRequest]) -> list[Answer]:
    """One kind of output after the other."""
    async with AsyncLLM(model, logits_processors=[BIAS], **OPTIONS) as llm:

        async def answer(index: int, request: RandomRequest) -> Answer:
            try:
                params = SamplingParams(**request.fields, output_kind=list(RequestOutputKind)[index % 3])
                outputs = [output async for output in llm.generate(request.prompt, params)]
            except ValueError as error:
                return refused(error)
            if params.output_kind is not RequestOutputKind.DELTA:
                return offline_answer(outputs[-1], request)
            whole = [Choice() for _ in range(params.n)]
            for part in (completion for output in outputs for completion in output.completions):
                choice, gained = whole[part.index], offline_logprobs(part.logprobs, request)
                choice.text += part.text
                choice.token_ids += part.token_ids
                choice.finish_reason = part.finish_reason
                choice.stop_reason = http_reason(part.stop_reason, request)
                choice.logprobs = choice.logprobs if gained is None else (choice.logprobs or []) + gained
            tokens = sum(len(choice.token_ids) for choice in whole)
            return Answer(whole, len(outputs[-1].prompt_token_ids), tokens)

        return list(await asyncio.gather(*(answer(*pair) for pair in enumerate(requests))))


def compare(found: Sequence[Answer], expected: Sequence[Answer], requests: Sequence[RandomRequest]) -> None:
    for answer, other, request in zip(found, expected, requests, strict=True):
        assert answer == other, request


def test_requests_are_of_every_kind(plain: tuple[list[Answer], list[Answer]], requests: list[RandomRequest]) -> None:
    """Else the comparison would say little."""
    answers, _ = plain
    assert len(answers) == COUNT
    choices = [choice for answer in answers for choice in answer.choices]
    assert {choice.finish_reason for choice in choices} == {"stop", "length"}
    assert {type(choice.stop_reason) for choice in choices} == {str, int, type(None)}
    assert any(choice.finish_reason == "stop" and choice.stop_reason is None for choice in choices)
    assert any(len(answer.choices) > 1 for answer in answers)
    assert any(choice.logprobs for choice in choices)
    assert any("�" in choice.text for choice in choices)
    assert any(answer.refused for answer in answers)
    assert sum(not answer.refused for answer in answers) > COUNT // 2
    assert len({type(request.prompt[0]) for request in requests}) == 3


def test_streamed_pieces_joined_are_the_plain_answers(
    plain: tuple[list[Answer], list[Answer]], requests: list[RandomRequest]
) -> None:
    whole, streamed = plain
    compare(streamed, whole, requests)


def test_llm_gives_the_plain_answers(
    plain: tuple[list[Answer], list[Answer]], requests: list[RandomRequest], model: str
) -> None:
    with LLM(model, logits_processors=[BIAS], **OPTIONS) as llm:
        compare(through_llm(llm, requests), plain[0], requests)


def test_async_llm_gives_the_plain_answers(
    plain: tuple[list[Answer], list[Answer]], requests: list[RandomRequest], model: str
) -> None:
    compare(asyncio.run(through_async_llm(model, requests)), plain[0], requests)
