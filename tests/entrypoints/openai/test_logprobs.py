"""Logprobs over HTTP: in OpenAI's shapes, streamed and whole, and true."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from openai.types import Completion, CompletionChoice
from openai.types.chat import ChatCompletion
from openai.types.chat.chat_completion import Choice
from support.chat import HELLO, MODEL, decode

PROMPT = "The capital of France is"
LIMIT = 10
TOP = 4
IM_END = "<|im_end|>"


def chat(client: openai.Client, **fields: Any) -> ChatCompletion:
    asked = {"temperature": 0, "max_tokens": LIMIT, "logprobs": True, **fields}
    answer: ChatCompletion = client.chat.completions.create(model=MODEL, messages=HELLO, **asked)
    return answer


def complete(client: openai.Client, prompt: Any = PROMPT, **fields: Any) -> Completion:
    asked = {"temperature": 0, "max_tokens": LIMIT, "logprobs": TOP, **fields}
    answer: Completion = client.completions.create(model=MODEL, prompt=prompt, **asked)
    return answer


def check_chat(choice: Choice, count: int) -> None:
    """Bytes that make up the text, and lists in descending order."""
    assert choice.logprobs is not None
    content = choice.logprobs.content or []
    shown = [entry for entry in content if entry.token != IM_END]
    assert bytes(byte for entry in shown for byte in entry.bytes or []).decode() == choice.message.content
    for entry in content:
        assert len(entry.top_logprobs) == count
        assert entry.logprob <= 0
        values = [top.logprob for top in entry.top_logprobs]
        assert values == sorted(values, reverse=True)


@pytest.mark.parametrize("fields", [{}, {"top_logprobs": 0}, {"top_logprobs": TOP}, {"top_logprobs": 20}])
def test_a_chats_logprobs_belong_to_its_tokens(light_client: openai.Client, fields: dict[str, int]) -> None:
    count = fields.get("top_logprobs", 0)
    answer = chat(light_client, **fields)
    (choice,) = answer.choices
    check_chat(choice, count)
    assert choice.logprobs is not None
    assert answer.usage is not None
    content = choice.logprobs.content or []
    assert len(content) == answer.usage.completion_tokens
    if count:  # greedy
        assert all(entry.top_logprobs[0].token == entry.token for entry in content)
        assert all(entry.top_logprobs[0].logprob == entry.logprob for entry in content)


def test_random_choices_have_logprobs_of_their_own(light_client: openai.Client) -> None:
    answer = chat(light_client, temperature=1.2, seed=5, n=3, top_logprobs=TOP)
    for choice in answer.choices:
        check_chat(choice, TOP)
    assert len({str(choice.logprobs) for choice in answer.choices}) == 3


def test_without_asking_there_are_none(light_client: openai.Client) -> None:
    assert chat(light_client, logprobs=False).choices[0].logprobs is None
    assert complete(light_client, logprobs=None).choices[0].logprobs is None


def test_a_streamed_chat_has_the_same_logprobs(light_client: openai.Client) -> None:
    whole = chat(light_client, top_logprobs=TOP, temperature=1.0, seed=3).choices[0]
    entries = []
    text = ""
    stream = light_client.chat.completions.create(
        model=MODEL,
        messages=HELLO,
        temperature=1.0,
        seed=3,
        max_tokens=LIMIT,
        logprobs=True,
        top_logprobs=TOP,
        stream=True,
    )
    for part in stream:
        (choice,) = part.choices
        text += choice.delta.content or ""
        if choice.logprobs is not None:
            entries += choice.logprobs.content or []
    assert whole.logprobs is not None
    assert text == whole.message.content
    assert [entry.model_dump() for entry in entries] == [each.model_dump() for each in whole.logprobs.content or []]


def check_completion(choice: CompletionChoice, count: int) -> None:
    """Lists of one length, with every token where the text has it."""
    found = choice.logprobs
    assert found is not None
    assert len(found.tokens) == len(found.token_logprobs) == len(found.top_logprobs) == len(found.text_offset)
    for token, logprob, top, offset in zip(
        found.tokens, found.token_logprobs, found.top_logprobs, found.text_offset, strict=True
    ):
        assert token == IM_END or choice.text.startswith(token, offset)
        assert top[token] == logprob
        assert max(1, count) <= len(top) <= count + 1


@pytest.mark.parametrize("count", [0, 1, TOP])
def test_a_completions_logprobs_stand_where_its_tokens_do(light_client: openai.Client, count: int) -> None:
    answer = complete(light_client, [PROMPT, "Once upon a time"], logprobs=count, temperature=0.8, seed=1, n=2)
    assert len(answer.choices) == 4
    for choice in answer.choices:
        check_completion(choice, count)
        assert choice.logprobs is not None
        assert choice.logprobs.text_offset[0] == 0


def test_a_streamed_completion_has_the_same_logprobs(light_client: openai.Client) -> None:
    whole = complete(light_client).choices[0].logprobs
    parts = light_client.completions.create(
        model=MODEL, prompt=PROMPT, temperature=0, max_tokens=LIMIT, logprobs=TOP, stream=True
    )
    joined: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for part in parts:
        for name, entries in joined.items():
            entries += getattr(part.choices[0].logprobs, name)
    assert whole is not None
    assert joined == {name: getattr(whole, name) for name in joined}


def test_prompt_logprobs_say_of_a_text_what_logprobs_said_when_it_was_written(light_client: openai.Client) -> None:
    """The answer, sent back as a prompt, is predicted as it was generated."""
    prompt_ids = [504, 3575, 282, 4649, 314]
    written = complete(light_client, prompt_ids, extra_body={"allowed_token_ids": list(range(1000, 1400))})
    assert written.choices[0].logprobs is not None
    extra = written.choices[0].model_extra or {}
    assert extra["prompt_logprobs"] is None
    values = written.choices[0].logprobs.token_logprobs
    by_text = {decode(token): token for token in range(1000, 1400)}
    token_ids = [by_text[token] for token in written.choices[0].logprobs.tokens]
    read = complete(light_client, prompt_ids + token_ids, max_tokens=1, extra_body={"prompt_logprobs": 2})
    first, *positions = (read.choices[0].model_extra or {})["prompt_logprobs"]
    assert first is None
    assert len(positions) == len(prompt_ids + token_ids) - 1
    for token, position, value in zip(token_ids, positions[len(prompt_ids) - 1 :], values, strict=True):
        assert position[str(token)]["logprob"] == pytest.approx(value, abs=1e-3)
        assert position[str(token)]["decoded_token"] == decode(token)
        assert sorted(each["rank"] for each in position.values())[:2] == [1, 2]


def test_a_chats_prompt_logprobs_stand_beside_its_choices(light_client: openai.Client) -> None:
    answer = chat(light_client, logprobs=False, n=2, extra_body={"prompt_logprobs": 0})
    assert answer.usage is not None
    first, *positions = (answer.model_extra or {})["prompt_logprobs"]
    assert first is None
    assert len(positions) == answer.usage.prompt_tokens - 1
    assert all(len(position) == 1 for position in positions)
