"""POST /v1/chat/completions through the real client: answers, streams, sampling, and clients that leave."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion
from support.chat import (
    ENDLESS,
    GREEDY,
    HELLO,
    chunks,
    metric,
    opened_stream,
    post,
    text_of,
    wait_for_running,
    wait_for_text,
)
from support.server import ServerProcess

CAPITAL, HAIKU, PRIMES = 0, 1, 2
CASES = 8
FREED_SECONDS = 10.0

Case = dict[str, Any]


def ask(client: openai.Client, messages: Any, **options: Any) -> ChatCompletion:
    """A plain answer; options that OpenAI does not know go through `extra_body`."""
    answer: ChatCompletion = client.chat.completions.create(model="default", messages=messages, **options)
    return answer


def texts(answer: ChatCompletion) -> list[str | None]:
    """The choices' texts in the order of the answer."""
    return [choice.message.content for choice in answer.choices]


def check_golden(answer: ChatCompletion, case: Case) -> None:
    """Text, finish reason and token counts are the reference's."""
    (choice,) = answer.choices
    assert (choice.index, choice.message.role, choice.message.content) == (0, "assistant", case["output_text"])
    assert choice.finish_reason == case["finish"]
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(case["prompt_ids"])
    assert answer.usage.completion_tokens == len(case["output_ids"])
    assert answer.usage.total_tokens == len(case["prompt_ids"]) + len(case["output_ids"])


def stream(server: ServerProcess, messages: Any, **fields: Any) -> list[dict[str, Any]]:
    """The chunks of a whole streamed answer."""
    with opened_stream(server, {"messages": messages, **fields}) as payloads:
        return chunks(payloads)


def model_cards(server: ServerProcess) -> list[dict[str, Any]]:
    """What GET /v1/models lists."""
    with openai.Client(base_url=f"{server.url}/v1", api_key="EMPTY_API_KEY") as client:
        return [card.model_dump() for card in client.models.list().data]


@pytest.mark.parametrize("index", [CAPITAL, HAIKU, PRIMES])
def test_golden_answer_alone(client: openai.Client, golden_cases: list[Case], index: int) -> None:
    case = golden_cases[index]
    answer = ask(client, case["messages"], **GREEDY)
    check_golden(answer, case)
    assert answer.id.startswith("chatcmpl-")
    assert answer.object == "chat.completion"


def test_golden_answers_in_one_batch(client: openai.Client, golden_cases: list[Case]) -> None:
    with ThreadPoolExecutor(CASES) as pool:
        answers = list(pool.map(lambda case: ask(client, case["messages"], **GREEDY), golden_cases))
    for answer, case in zip(answers, golden_cases, strict=True):
        check_golden(answer, case)
    assert len({answer.id for answer in answers}) == CASES


def test_golden_answers_through_concurrent_async_streams(server: ServerProcess, golden_cases: list[Case]) -> None:
    async def one(client: openai.AsyncClient, case: Case) -> str:
        events = await client.chat.completions.create(model="default", messages=case["messages"], stream=True, **GREEDY)
        return "".join([choice.delta.content or "" async for event in events for choice in event.choices])

    async def everyone() -> list[str]:
        async with openai.AsyncClient(base_url=f"{server.url}/v1", api_key="EMPTY_API_KEY", max_retries=0) as client:
            return list(await asyncio.gather(*(one(client, case) for case in golden_cases)))

    assert asyncio.run(everyone()) == [case["output_text"] for case in golden_cases]


def test_plain_answer_of_the_async_client(server: ServerProcess, golden_cases: list[Case]) -> None:
    async def one() -> ChatCompletion:
        async with openai.AsyncClient(base_url=f"{server.url}/v1", api_key="EMPTY_API_KEY", max_retries=0) as client:
            messages = golden_cases[CAPITAL]["messages"]
            answer: ChatCompletion = await client.chat.completions.create(model="default", messages=messages, **GREEDY)
            return answer

    check_golden(asyncio.run(one()), golden_cases[CAPITAL])


def test_stream_with_usage_has_the_usage_last(server: ServerProcess, golden_cases: list[Case]) -> None:
    case = golden_cases[CAPITAL]
    *parts, last = stream(server, case["messages"], **GREEDY, stream_options={"include_usage": True})
    assert last["choices"] == []
    counts = len(case["prompt_ids"]), len(case["output_ids"])
    cached = last["usage"].pop("prompt_tokens_details")["cached_tokens"]
    assert 0 <= cached < counts[0]
    assert last["usage"] == {
        "prompt_tokens": counts[0],
        "completion_tokens": counts[1],
        "total_tokens": sum(counts),
    }
    assert not any(part.get("usage") for part in parts)
    assert text_of(parts) == case["output_text"]


@pytest.mark.parametrize("options", [{}, {"stream_options": {"include_usage": False}}])
def test_stream_without_usage_has_no_usage_field(
    server: ServerProcess, golden_cases: list[Case], options: dict[str, Any]
) -> None:
    parts = stream(server, golden_cases[CAPITAL]["messages"], **GREEDY, **options)
    assert not any("usage" in part for part in parts)
    assert all(len(part["choices"]) == 1 for part in parts)


def test_stream_begins_with_the_role_and_ends_with_the_reason(server: ServerProcess, golden_cases: list[Case]) -> None:
    first, *parts = stream(server, golden_cases[HAIKU]["messages"], **GREEDY)
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert not any("role" in part["choices"][0]["delta"] for part in parts)
    assert [part["choices"][0]["finish_reason"] for part in parts] == [None] * (len(parts) - 1) + ["length"]
    assert {part["object"] for part in parts} == {"chat.completion.chunk"}
    assert {(part["id"], part["model"]) for part in parts} == {(first["id"], first["model"])}
    assert len(parts) > 8, "text comes as it is generated, not in one piece"


def test_every_streamed_choice_has_one_role_and_one_reason(light_server: ServerProcess) -> None:
    body = {"n": 3, "seed": 7, "max_tokens": 12}
    parts = stream(light_server, HELLO, **body)
    for index in range(3):
        own = [choice for part in parts for choice in part["choices"] if choice["index"] == index]
        assert [choice["delta"].get("role") for choice in own] == ["assistant"] + [None] * (len(own) - 1)
        assert [choice["finish_reason"] is None for choice in own] == [True] * (len(own) - 1) + [False]
    plain = post(light_server, {"messages": HELLO, **body}).json()
    assert [text_of(parts, index) for index in range(3)] == [c["message"]["content"] for c in plain["choices"]]


@pytest.mark.parametrize(
    ("stop", "text", "hit", "tokens"),
    [
        ("\n", "1. 1", "\n", 5),
        ("3\n4", "1. 1\n2. 2\n3. ", "3\n4", 16),
        ([". 5\n5"], "1. 1\n2. 2\n3. 3\n4", ". 5\n5", 21),
        (["\n4", "3\n"], "1. 1\n2. 2\n3. ", "3\n", 15),
        ("1", "", "1", 1),
    ],
)
def test_stop_string_ends_the_answer_and_is_not_in_it(
    client: openai.Client, golden_cases: list[Case], stop: str | list[str], text: str, hit: str, tokens: int
) -> None:
    answer = ask(client, golden_cases[PRIMES]["messages"], **GREEDY, stop=stop)
    (choice,) = answer.choices
    assert (choice.message.content, choice.finish_reason) == (text, "stop")
    assert choice.model_extra is not None
    assert choice.model_extra["stop_reason"] == hit
    assert answer.usage is not None
    assert answer.usage.completion_tokens == tokens


@pytest.mark.parametrize(
    ("index", "stop", "text"),
    [
        (PRIMES, "3\n4", "1. 1\n2. 2\n3. "),
        (HAIKU, ["lent bea", "never there"], "In the depths of the ocean, a si"),
        (PRIMES, ["3\n5", "7\n8"], None),
        (HAIKU, "A place where!", None),
    ],
)
def test_streamed_text_stops_where_the_plain_one_does(
    server: ServerProcess, golden_cases: list[Case], index: int, stop: str | list[str], text: str | None
) -> None:
    """Text that only looks like the beginning of a stop string comes in the end."""
    parts = stream(server, golden_cases[index]["messages"], **GREEDY, stop=stop)
    assert text_of(parts) == (golden_cases[index]["output_text"] if text is None else text)
    assert parts[-1]["choices"][0]["finish_reason"] == ("length" if text is None else "stop")


def test_stop_token_ends_the_answer(client: openai.Client, golden_cases: list[Case]) -> None:
    newline = golden_cases[PRIMES]["output_ids"][4]
    answer = ask(client, golden_cases[PRIMES]["messages"], **GREEDY, extra_body={"stop_token_ids": [newline]})
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].model_extra["stop_reason"] == newline
    assert (answer.choices[0].message.content or "").rstrip() == "1. 1"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 5


def test_seed_settles_the_text(light_client: openai.Client) -> None:
    haiku = [{"role": "user", "content": "Write a haiku about the ocean."}]
    seeds = [1, 2, 3, 2**64 - 1]
    with ThreadPoolExecutor(2 * len(seeds)) as pool:
        drawn = list(pool.map(lambda seed: texts(ask(light_client, haiku, seed=seed, max_tokens=16))[0], seeds * 2))
    assert drawn[: len(seeds)] == drawn[len(seeds) :]
    assert len(set(drawn)) == len(seeds)


def test_without_a_seed_answers_differ(light_client: openai.Client) -> None:
    answer = ask(light_client, [{"role": "user", "content": "Write a haiku about the ocean."}], n=4, max_tokens=16)
    again = ask(light_client, [{"role": "user", "content": "Write a haiku about the ocean."}], n=4, max_tokens=16)
    assert len({*texts(answer), *texts(again)}) > 4


def test_n_choices_of_a_seed_are_the_same_alone_and_in_a_crowd(
    light_server: ServerProcess, light_client: openai.Client
) -> None:
    seeded = {"n": 3, "seed": 14, "max_tokens": 16, "top_p": 0.9}
    alone = ask(light_client, HELLO, **seeded)
    assert [choice.index for choice in alone.choices] == [0, 1, 2]
    assert len(set(texts(alone))) == 3
    with opened_stream(light_server, {**ENDLESS, "n": 4, "temperature": 1.5}) as neighbours:
        wait_for_text(neighbours)
        crowded = ask(light_client, HELLO, **seeded)
    assert texts(crowded) == texts(alone)
    assert alone.usage is not None
    assert crowded.usage == alone.usage
    assert alone.usage.completion_tokens <= 3 * 16


@pytest.mark.parametrize(
    "limit", [{"max_tokens": 5}, {"max_completion_tokens": 5}, {"max_tokens": 9, "max_completion_tokens": 5}]
)
def test_token_limit_ends_with_length(client: openai.Client, golden_cases: list[Case], limit: dict[str, int]) -> None:
    answer = ask(client, golden_cases[HAIKU]["messages"], temperature=0, **limit)
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].message.content == "In the depths of the"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 5


def test_without_a_limit_the_model_ends_itself(client: openai.Client, golden_cases: list[Case]) -> None:
    check_golden(ask(client, golden_cases[CAPITAL]["messages"], temperature=0), golden_cases[CAPITAL])


def test_the_context_ends_what_has_no_limit(strict_server: ServerProcess) -> None:
    body = {"messages": [{"role": "user", "content": "word " * 100}], "temperature": 0, "ignore_eos": True}
    answer = post(strict_server, body).json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["total_tokens"] == model_cards(strict_server)[0]["max_model_len"]


def test_ignore_eos_goes_on(client: openai.Client, golden_cases: list[Case]) -> None:
    case = golden_cases[CAPITAL]
    answer = ask(client, case["messages"], temperature=0, max_tokens=16, extra_body={"ignore_eos": True})
    assert answer.choices[0].finish_reason == "length"
    assert (answer.choices[0].message.content or "").startswith(case["output_text"])
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 16


def test_top_k_of_one_is_greedy(client: openai.Client, golden_cases: list[Case]) -> None:
    def one(case: Case) -> ChatCompletion:
        return ask(client, case["messages"], temperature=1.5, max_tokens=32, extra_body={"top_k": 1})

    with ThreadPoolExecutor(CASES) as pool:
        for answer, case in zip(pool.map(one, golden_cases[:3]), golden_cases[:3], strict=True):
            check_golden(answer, case)


def test_tiny_top_p_is_greedy(client: openai.Client, golden_cases: list[Case]) -> None:
    case = golden_cases[HAIKU]
    check_golden(ask(client, case["messages"], temperature=1, top_p=1e-6, max_tokens=32), case)


@pytest.mark.parametrize("model", [{"model": "smollm2-135m"}, {"model": "default"}, {"model": None}, {}])
def test_served_name_default_and_nothing_name_the_model(light_server: ServerProcess, model: dict[str, Any]) -> None:
    answer = post(light_server, {"messages": HELLO, "max_tokens": 1, **model})
    assert answer.status_code == 200
    assert answer.json()["model"] == "smollm2-135m"


def test_served_model_name_replaces_the_path(strict_server: ServerProcess) -> None:
    answer = post(strict_server, {"model": "smol", "messages": HELLO, "max_tokens": 1})
    assert (answer.status_code, answer.json()["model"]) == (200, "smol")
    refused = post(strict_server, {"model": "smollm2-135m", "messages": HELLO, "max_tokens": 1})
    assert refused.status_code == 404
    assert [card["id"] for card in model_cards(strict_server)] == ["smol"]


def test_another_model_is_not_found(light_client: openai.Client) -> None:
    with pytest.raises(openai.NotFoundError) as raised:
        light_client.chat.completions.create(model="gpt-4", messages=[{"role": "user", "content": "Hi"}])
    assert raised.value.code == "model_not_found"
    assert raised.value.param == "model"
    assert "smollm2-135m" in raised.value.message


def test_models_are_listed(light_client: openai.Client) -> None:
    (card,) = light_client.models.list().data
    assert card.id == "smollm2-135m"
    assert card.model_extra is not None
    assert card.model_extra["max_model_len"] == 2048


def test_content_parts_are_joined(client: openai.Client, golden_cases: list[Case]) -> None:
    case = golden_cases[CAPITAL]
    half = len(case["prompt"]) // 2
    parts = [{"type": "text", "text": text} for text in (case["prompt"][:half], case["prompt"][half:])]
    check_golden(ask(client, [{"role": "user", "content": parts}], **GREEDY), case)


def test_developer_messages_are_system_messages(client: openai.Client, golden_cases: list[Case]) -> None:
    case = next(case for case in golden_cases if case["messages"][0]["role"] == "system")
    system, *rest = case["messages"]
    check_golden(ask(client, [{**system, "role": "developer"}, *rest], **GREEDY), case)


def test_fields_that_ask_for_nothing_are_accepted(client: openai.Client, golden_cases: list[Case]) -> None:
    nothing: dict[str, Any] = {
        "frequency_penalty": 0,
        "presence_penalty": 0,
        "logit_bias": {},
        "logprobs": False,
        "n": 1,
        "user": "someone",
        "metadata": {"purpose": "test"},
        "response_format": {"type": "text"},
    }
    case = golden_cases[CAPITAL]
    check_golden(ask(client, case["messages"], **GREEDY, **nothing, extra_body={"another": None}), case)


def test_client_that_leaves_a_stream_frees_its_slot(server: ServerProcess) -> None:
    wait_for_running(server, 0)
    before = metric(server, "generation_tokens_total")
    with opened_stream(server, ENDLESS) as payloads:
        wait_for_text(payloads)
        wait_for_running(server, 1)
    wait_for_running(server, 0, FREED_SECONDS)
    assert metric(server, "generation_tokens_total") - before < ENDLESS["max_tokens"] / 2


@pytest.fixture
def plain_request(server: ServerProcess) -> Iterator[socket.socket]:
    """A connection whose plain request, three long choices, is running."""
    body = json.dumps({**ENDLESS, "n": 3}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {server.url}\r\nContent-Type: application/json\r\n"
    wait_for_running(server, 0)
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        wait_for_running(server, 3)
        yield connection


def test_client_that_leaves_a_plain_request_frees_its_slots(
    server: ServerProcess, plain_request: socket.socket
) -> None:
    before = metric(server, "generation_tokens_total")
    plain_request.close()
    wait_for_running(server, 0, FREED_SECONDS)
    assert metric(server, "generation_tokens_total") - before < ENDLESS["max_tokens"]
