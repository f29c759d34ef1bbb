"""POST /v1/completions with the real OpenAI client."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from openai.types import Completion
from support.chat import MODEL, chunks, decode
from support.server import ServerProcess

PROMPTS = ["The capital of France is", "Once upon a time", "def add(a, b):", "1, 2, 3, 4,"]
LIMIT = 8
VOCABULARY = 49152

Case = dict[str, Any]


def create(client: openai.Client, prompt: Any, **fields: Any) -> Completion:
    asked = {"temperature": 0, "max_tokens": LIMIT, **fields}
    answer: Completion = client.completions.create(model=MODEL, prompt=prompt, **asked)
    return answer


def texts(answer: Completion) -> list[str]:
    assert [choice.index for choice in answer.choices] == list(range(len(answer.choices)))
    return [choice.text for choice in answer.choices]


def streamed(client: openai.Client, prompt: Any, **fields: Any) -> list[Completion]:
    asked = {"temperature": 0, "max_tokens": LIMIT, **fields}
    return list(client.completions.create(model=MODEL, prompt=prompt, stream=True, **asked))


def joined(parts: list[Completion]) -> dict[int, str]:
    """The text that each choice gained."""
    gained: dict[int, str] = {}
    for choice in (choice for part in parts for choice in part.choices):
        gained[choice.index] = gained.get(choice.index, "") + choice.text
    return dict(sorted(gained.items()))


@pytest.fixture
def singly(light_client: openai.Client) -> list[str]:
    """Each prompt's answer when it is asked alone."""
    return [texts(create(light_client, prompt))[0] for prompt in PROMPTS]


def test_a_text_is_gone_on_with(client: openai.Client) -> None:
    answer = create(client, PROMPTS[0])
    assert (answer.object, answer.model) == ("text_completion", MODEL)
    assert answer.id.startswith("cmpl-")
    (choice,) = answer.choices
    assert "Paris" in choice.text
    assert (choice.finish_reason, choice.logprobs) == ("length", None)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == LIMIT
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + LIMIT


def test_sixteen_tokens_unless_the_request_says_otherwise(light_client: openai.Client) -> None:
    answer = light_client.completions.create(
        model=MODEL, prompt=PROMPTS[1], temperature=0, extra_body={"ignore_eos": True}
    )
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 16


def test_a_rendered_chat_gives_the_reference_answer(client: openai.Client, golden_cases: list[Case]) -> None:
    """As text, which is not given special tokens of its own, and as token ids."""
    for case in golden_cases[:2]:
        for prompt in (case["rendered"], case["prompt_ids"]):
            answer = create(client, prompt, max_tokens=32)
            assert texts(answer) == [case["output_text"]]
            assert answer.choices[0].finish_reason == case["finish"]
            assert answer.usage is not None
            assert answer.usage.prompt_tokens == len(case["prompt_ids"])


def test_many_texts_are_answered_in_order(light_client: openai.Client, singly: list[str]) -> None:
    assert texts(create(light_client, PROMPTS)) == singly
    assert len(set(singly)) == len(PROMPTS)


def test_many_token_id_prompts_are_answered_in_order(client: openai.Client, golden_cases: list[Case]) -> None:
    answer = create(client, [case["prompt_ids"] for case in golden_cases])
    assert texts(answer) == [decode(*case["output_ids"][:LIMIT]) for case in golden_cases]
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == sum(len(case["prompt_ids"]) for case in golden_cases)


def test_a_list_of_one_is_that_one(light_client: openai.Client, golden_cases: list[Case], singly: list[str]) -> None:
    assert texts(create(light_client, PROMPTS[:1])) == singly[:1]
    ids = golden_cases[0]["prompt_ids"]
    assert texts(create(light_client, [ids])) == texts(create(light_client, ids))


def test_every_prompt_has_n_choices_in_a_row(light_client: openai.Client, singly: list[str]) -> None:
    answer = create(light_client, PROMPTS[:2], n=3)
    assert texts(answer) == [singly[0]] * 3 + [singly[1]] * 3
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 6 * LIMIT


def test_the_choices_of_a_seed_are_the_same_again_and_unlike_one_another(light_client: openai.Client) -> None:
    fields = {"n": 3, "temperature": 1.0, "seed": 7, "max_tokens": 12}
    first = texts(create(light_client, PROMPTS[1], **fields))
    assert texts(create(light_client, PROMPTS[1], **fields)) == first
    assert len(set(first)) == 3


def test_a_stream_of_several_prompts_gives_the_plain_texts(light_client: openai.Client, singly: list[str]) -> None:
    parts = streamed(light_client, PROMPTS)
    assert joined(parts) == dict(enumerate(singly))
    assert len({part.id for part in parts}) == 1
    assert all(part.usage is None for part in parts)


def test_every_choice_of_a_stream_ends_once(light_client: openai.Client) -> None:
    parts = streamed(light_client, PROMPTS[:2], n=2)
    ends = [choice for part in parts for choice in part.choices if choice.finish_reason is not None]
    assert sorted(choice.index for choice in ends) == [0, 1, 2, 3]
    assert {choice.finish_reason for choice in ends} == {"length"}
    last = {choice.index: choice for part in parts for choice in part.choices}
    assert sorted(map(id, last.values())) == sorted(map(id, ends))


def test_n_choices_of_streamed_prompts_have_the_plain_indexes(light_client: openai.Client) -> None:
    fields = {"n": 2, "temperature": 1.0, "seed": 5}
    assert list(joined(streamed(light_client, PROMPTS[:3], **fields)).values()) == texts(
        create(light_client, PROMPTS[:3], **fields)
    )


def test_a_stream_is_not_one_piece(light_client: openai.Client) -> None:
    pieces = [choice for part in streamed(light_client, PROMPTS[0], max_tokens=24) for choice in part.choices]
    assert len(pieces) > 3


def test_usage_closes_a_stream_that_asks_for_it(light_client: openai.Client) -> None:
    plain = create(light_client, PROMPTS, n=2)
    *parts, last = streamed(light_client, PROMPTS, n=2, stream_options={"include_usage": True})
    assert last.choices == []
    assert last.usage == plain.usage
    assert all(part.choices for part in parts)


def test_raw_events_end_with_done(light_server: ServerProcess, light_client: openai.Client) -> None:
    body = {"model": MODEL, "prompt": PROMPTS[:2], "max_tokens": 3, "temperature": 0, "stream": True}
    with light_client.completions.with_streaming_response.create(**body) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    parts = chunks(iter(lines))
    assert {part["object"] for part in parts} == {"text_completion"}
    assert not any("usage" in part for part in parts)


def test_a_stop_string_ends_the_text_before_it(light_client: openai.Client) -> None:
    whole = texts(create(light_client, PROMPTS[3], max_tokens=24))[0]
    stop = whole[8:11]
    expected = whole[: whole.index(stop)]
    answer = create(light_client, PROMPTS[3], max_tokens=24, stop=stop)
    assert texts(answer) == [expected]
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].model_extra == {"stop_reason": stop, "prompt_logprobs": None}
    assert joined(streamed(light_client, PROMPTS[3], max_tokens=24, stop=["never to be seen", stop])) == {0: expected}


def test_a_stop_string_ends_only_the_prompts_that_reach_it(light_client: openai.Client, singly: list[str]) -> None:
    stop = singly[1][2:6]
    assert [stop in text for text in singly] == [False, True, False, False]
    answer = create(light_client, PROMPTS, stop=stop)
    assert texts(answer) == [singly[0], singly[1][: singly[1].index(stop)], *singly[2:]]
    assert [choice.finish_reason for choice in answer.choices] == ["length", "stop", "length", "length"]


def test_stop_tokens_end_it(client: openai.Client, golden_cases: list[Case]) -> None:
    case = golden_cases[1]
    token = case["output_ids"][5]
    answer = create(client, case["prompt_ids"], max_tokens=32, extra_body={"stop_token_ids": [token]})
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].model_extra["stop_reason"] == token
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 1 + case["output_ids"].index(token)


# Errors


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({}, "prompt", "missing_required_parameter"),
        ({"prompt": None}, "prompt", "invalid_value"),
        ({"prompt": 5}, "prompt", "invalid_value"),
        ({"prompt": ""}, "prompt", "invalid_value"),
        ({"prompt": []}, "prompt", "invalid_value"),
        ({"prompt": [[]]}, "prompt.0", "invalid_value"),
        ({"prompt": ["Hi", ""]}, "prompt.1", "invalid_value"),
        ({"prompt": [1, VOCABULARY]}, "prompt.1", "invalid_value"),
        ({"prompt": [-1]}, "prompt.0", "invalid_value"),
        ({"prompt": [[1], [2, VOCABULARY]]}, "prompt.1.1", "invalid_value"),
        ({"prompt": "Hi", "max_tokens": 0}, "max_tokens", "invalid_value"),
        ({"prompt": "Hi", "max_tokens": 10**6}, "max_tokens", "context_length_exceeded"),
        ({"prompt": [1] * 5000}, "prompt", "context_length_exceeded"),
        ({"prompt": "Hi", "n": 0}, "n", "invalid_value"),
        ({"prompt": "Hi", "stop": [""]}, "stop.0", "invalid_value"),
        ({"prompt": "Hi", "nope": 1}, "nope", "unknown_parameter"),
    ],
)
def test_a_body_that_cannot_be_served_is_refused_with_its_path(
    light_client: openai.Client, fields: dict[str, Any], param: str, code: str, stream: bool
) -> None:
    """The client's own methods would not send some of these."""
    with pytest.raises(openai.BadRequestError) as caught:
        light_client.post("/completions", body={"model": MODEL, "stream": stream, **fields}, cast_to=object)
    assert (caught.value.param, caught.value.code, caught.value.type) == (param, code, "invalid_request_error")
    assert f"{param}: " in caught.value.message


def test_one_bad_prompt_refuses_the_request_and_leaves_nothing_running(light_client: openai.Client) -> None:
    with pytest.raises(openai.BadRequestError):
        create(light_client, [[1, 2], [VOCABULARY]])
    assert texts(create(light_client, PROMPTS[0]))


def test_an_unknown_model_is_not_found(light_client: openai.Client) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        light_client.completions.create(model="gpt-3.5-turbo-instruct", prompt="Hi")
    assert (caught.value.param, caught.value.code) == ("model", "model_not_found")
