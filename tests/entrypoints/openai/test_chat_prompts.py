"""From a chat's body to the prompt that the model gets: templates, their variables, and token ids."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.chat import GREEDY, HELLO, chunks, decode, encode, opened_stream, post
from support.server import ServerProcess

ECHO_TEMPLATE = "{{ messages[0].content }}|{{ enable_thinking }}|{{ mood }}|{{ add_generation_prompt }}"


def prompt_of(server: ServerProcess, **fields: Any) -> str:
    answer = post(server, {"messages": HELLO, "max_tokens": 1, "return_token_ids": True, **fields})
    assert answer.status_code == 200, answer.text
    return decode_all(answer.json()["prompt_token_ids"])


def decode_all(token_ids: list[int]) -> str:
    return "".join(decode(token) if token > 2 else f"<{token}>" for token in token_ids)


def refusal(server: ServerProcess, **fields: Any) -> dict[str, Any]:
    answer = post(server, {"messages": HELLO, "max_tokens": 1, **fields})
    assert answer.status_code == 400, answer.text
    error: dict[str, Any] = answer.json()["error"]
    return error


def test_a_trusted_request_brings_its_own_template_and_variables(scripted_server: ServerProcess) -> None:
    fields = {"chat_template": ECHO_TEMPLATE, "chat_template_kwargs": {"mood": "good"}, "enable_thinking": False}
    assert prompt_of(scripted_server, **fields) == "Hello!|False|good|True"
    assert prompt_of(scripted_server, **fields, add_generation_prompt=False).endswith("False")


def test_thinking_is_a_variable_of_the_servers_template(scripted_server: ServerProcess) -> None:
    assert prompt_of(scripted_server, enable_thinking=False).endswith("<think></think>\n")
    assert prompt_of(scripted_server, chat_template_kwargs={"enable_thinking": False}).endswith("<think></think>\n")
    assert prompt_of(scripted_server, enable_thinking=True).endswith("assistant\n")


def test_names_and_earlier_calls_reach_the_template(scripted_server: ServerProcess) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    messages = [
        {"role": "user", "content": "Hi", "name": "Ann"},
        {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None, "function_call": None},
        {"role": "tool", "content": [{"type": "text", "text": "5"}], "tool_call_id": "c"},
    ]
    prompt = prompt_of(scripted_server, messages=messages)
    assert "user Ann\nHi" in prompt
    assert '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>' in prompt
    assert "tool\n5" in prompt


def test_the_final_message_is_gone_on_with(server: ServerProcess) -> None:
    started = [*HELLO, {"role": "assistant", "content": "The capital of France is"}]
    body = {"messages": started, **GREEDY, "continue_final_message": True}
    assert post(server, body).json()["choices"][0]["message"]["content"].startswith(" Paris")
    assert prompt_of(server, messages=started, continue_final_message=True).endswith("The capital of France is")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"chat_template": ECHO_TEMPLATE}, "chat_template"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
        ({"chat_template_kwargs": {"enable_thinking": True}, "enable_thinking": False}, "enable_thinking"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
        ({"continue_final_message": True, "messages": [{"role": "user", "content": ""}]}, "continue_final_message"),
        ({"prompt_token_ids": []}, "prompt_token_ids"),
        ({"prompt_token_ids": [5, 99_999]}, "prompt_token_ids.1"),
        ({"prompt_token_ids": ["5"]}, "prompt_token_ids.0"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "function", "name": "f", "content": "5"}]}, "messages.0.role"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages.0.content.0.type",
        ),
        ({"messages": [{"role": "user", "content": "Hi", "audio": {"id": "x"}}]}, "messages.0.audio"),
        ({"audio": {"voice": "x"}}, "audio"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"store": "yes"}, "store"),
        ({"service_tier": "best"}, "service_tier"),
        ({"spaces_between_special_tokens": False}, "spaces_between_special_tokens"),
        ({"reasoning_effort": "some"}, "reasoning_effort"),
        ({"verbosity": 5}, "verbosity"),
        ({"verbosity": "low", "chat_template_kwargs": {"verbosity": "high"}}, "verbosity"),
        ({"request_id": "two words"}, "request_id"),
        ({"request_id": ""}, "request_id"),
        ({"skip_special_tokens": 1}, "skip_special_tokens"),
    ],
    ids=lambda value: value if isinstance(value, str) else json.dumps(value)[:60],
)
def test_what_cannot_be_served_is_named(light_server: ServerProcess, fields: dict[str, Any], param: str) -> None:
    error = refusal(light_server, **fields)
    assert error["param"] == param
    assert error["message"].startswith(f"{param}: ")


def test_another_kind_of_part_is_named_in_words(light_server: ServerProcess) -> None:
    parts = [
        {"type": "text", "text": "What is this?"},
        {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
    ]
    error = refusal(light_server, messages=[{"role": "user", "content": parts}])
    assert error["param"] == "messages.0.content.1.type"
    assert "input_audio" in error["message"]


@pytest.mark.parametrize(
    "template",
    [
        "{% for %}",
        "{{ raise_exception('no') }}",
        "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
    ],
)
def test_a_requests_broken_template_is_refused(scripted_server: ServerProcess, template: str) -> None:
    assert refusal(scripted_server, chat_template=template)["param"] == "chat_template"


def test_fields_that_ask_for_nothing_are_accepted(light_server: ServerProcess) -> None:
    nothing = {
        "store": False,
        "service_tier": "auto",
        "modalities": ["text"],
        "user": "someone",
        "metadata": {"a": "b"},
        "safety_identifier": "x",
        "prompt_cache_key": "y",
        "spaces_between_special_tokens": True,
        "audio": None,
        "prediction": None,
        "stream": None,
        "n": None,
        "include_reasoning": None,
    }
    assert post(light_server, {"messages": HELLO, "max_tokens": 1, **nothing}).status_code == 200


def test_token_ids_go_in_instead_of_messages_and_come_out(server: ServerProcess, golden_cases: list[Any]) -> None:
    case = golden_cases[0]
    body = {"prompt_token_ids": case["prompt_ids"], "return_token_ids": True, **GREEDY}
    for messages in ({}, {"messages": []}, {"messages": HELLO}):
        answer = post(server, {**body, **messages}).json()
        assert answer["choices"][0]["message"]["content"] == case["output_text"]
        assert answer["prompt_token_ids"] == case["prompt_ids"]
        assert answer["choices"][0]["token_ids"] == case["output_ids"]


def test_streamed_token_ids_are_those_of_the_plain_answer(light_server: ServerProcess) -> None:
    body = {"messages": HELLO, "n": 2, "seed": 5, "max_tokens": 12, "temperature": 1.5, "return_token_ids": True}
    plain = post(light_server, body).json()
    with opened_stream(light_server, body) as payloads:
        parts = chunks(payloads)
    assert [part["prompt_token_ids"] for part in parts if "prompt_token_ids" in part] == [plain["prompt_token_ids"]]
    for choice in plain["choices"]:
        own = [each for part in parts for each in part["choices"] if each["index"] == choice["index"]]
        assert [token for each in own for token in each.get("token_ids") or []] == choice["token_ids"]
        assert "".join(each["delta"].get("content") or "" for each in own) == choice["message"]["content"]


def test_without_the_option_there_are_no_token_ids(light_server: ServerProcess) -> None:
    answer = post(light_server, {"messages": HELLO, "max_tokens": 2}).json()
    assert "prompt_token_ids" not in answer
    assert "token_ids" not in answer["choices"][0]


@pytest.mark.parametrize("sent", ["mine", "chatcmpl-mine"])
def test_the_answers_id_is_made_from_the_requests(light_server: ServerProcess, sent: str) -> None:
    body = {"messages": HELLO, "max_tokens": 2, "request_id": sent}
    assert [post(light_server, body).json()["id"] for _ in range(2)] == ["chatcmpl-mine"] * 2
    with opened_stream(light_server, body) as payloads:
        assert {part["id"] for part in chunks(payloads)} == {"chatcmpl-mine"}


def test_special_tokens_and_what_stops_are_shown_on_request(server: ServerProcess, golden_cases: list[Any]) -> None:
    body = {"messages": golden_cases[0]["messages"], **GREEDY}
    shown = {**body, "skip_special_tokens": False, "include_stop_str_in_output": True}
    plain = post(server, shown).json()["choices"][0]
    assert plain["message"]["content"] == golden_cases[0]["output_text"] + "<|im_end|>"
    stopped = {**body, "stop": "Paris", "include_stop_str_in_output": True}
    assert post(server, stopped).json()["choices"][0]["message"]["content"].endswith("Paris")
    assert (
        not post(server, {**stopped, "include_stop_str_in_output": False})
        .json()["choices"][0]["message"]["content"]
        .endswith("Paris")
    )
    assert encode("<|im_end|>") == [2]
