"""Bodies that cannot be served: a status of 400, the JSON path of what is wrong, and a server that goes on."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import httpx
import pytest
from support.chat import GREEDY, HELLO, chat_url, post
from support.errors import check_error
from support.server import ServerProcess

BODY: dict[str, Any] = {"messages": HELLO, "max_tokens": 1}
ASKED = {"role": "user", "content": "Hi"}
MUTATIONS = 50


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": "Hi"}, "messages"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
        ({"messages": [{"role": "user"}]}, "messages.0.content"),
        ({"messages": [{"content": "Hi"}]}, "messages.0.role"),
        ({"messages": [ASKED, {"role": "wizard", "content": "Hi"}]}, "messages.1.role"),
        ({"messages": [ASKED, "Hi"]}, "messages.1"),
        ({"messages": [{**ASKED, "mood": "good"}]}, "messages.0.mood"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages.0.content.0.text"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages"),
        ({"messages": [{"role": "user", "content": "word " * 300}]}, "messages"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"top_k": 0.5}, "top_k"),
        ({"top_k": 2**70}, "top_k"),
        ({"n": 0}, "n"),
        ({"n": 1000}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 100_000}, "max_tokens"),
        ({"max_tokens": 2**70}, "max_tokens"),
        ({"max_tokens": "1"}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"max_completion_tokens": 100_000}, "max_completion_tokens"),
        ({"seed": -(2**63) - 1}, "seed"),
        ({"seed": 2**64}, "seed"),
        ({"seed": 1.5}, "seed"),
        ({"stop": [str(number) for number in range(100)]}, "stop"),
        ({"stop": [""]}, "stop.0"),
        ({"stop": ["a", ""]}, "stop.1"),
        ({"stop": 5}, "stop"),
        ({"stop": ["a", 5]}, "stop.1"),
        ({"stop_token_ids": [1, -1]}, "stop_token_ids.1"),
        ({"stop_token_ids": [99_999]}, "stop_token_ids.0"),
        ({"ignore_eos": "yes"}, "ignore_eos"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": "yes"}}, "stream_options.include_usage"),
        ({"stream": True, "stream_options": {"more": True}}, "stream_options.more"),
        ({"no_such_field": 1}, "no_such_field"),
        ({"frequency_penalty": 2.1}, "frequency_penalty"),
        ({"presence_penalty": -2.1}, "presence_penalty"),
        ({"presence_penalty": "1"}, "presence_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"min_p": 1.5}, "min_p"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        ({"min_tokens": 100_000}, "min_tokens"),
        ({"bad_words": "word"}, "bad_words"),
        ({"bad_words": ["a", " "]}, "bad_words.1"),
        ({"bad_words_token_ids": [[1], []]}, "bad_words_token_ids.1"),
        ({"bad_words_token_ids": [[1], [5, 99_999]]}, "bad_words_token_ids.1.1"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"allowed_token_ids": [1, 99_999]}, "allowed_token_ids.1"),
        ({"logprobs": 3}, "logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"model": 5}, "model"),
        ({"logits_processors_args": 5}, "logits_processors_args"),
        ({"logits_processors_args": []}, "logits_processors_args"),
        ({"logits_processors_args": {"logit_bias": [5]}}, "logits_processors_args.logit_bias"),
        ({"logits_processors_args": {"logit_bias": {"99999": 1}}}, "logits_processors_args.logit_bias.99999"),
        ({"logits_processors_args": {"logit_bias": {"-1": 1}}}, "logits_processors_args.logit_bias.-1"),
        ({"logits_processors_args": {"logit_bias": {"the": 1}}}, "logits_processors_args.logit_bias.the"),
        ({"logits_processors_args": {"logit_bias": {"5": float("nan")}}}, "logits_processors_args.logit_bias.5"),
        ({"logits_processors_args": {"logit_bias": {"5": float("inf")}}}, "logits_processors_args.logit_bias.5"),
        ({"logits_processors_args": {"logit_bias": {"5": "high"}}}, "logits_processors_args.logit_bias.5"),
        ({"logits_processors_args": {"logit_bias": {"5": True}}}, "logits_processors_args.logit_bias.5"),
        ({"logits_processors_args": {"logit_bias": {"5": "1"}}}, "logits_processors_args.logit_bias.5"),
        ({"logits_processors_args": {"no_such_argument": 1}}, "logits_processors_args.no_such_argument"),
        ({"logits_processors_args": {"logitbias": {"5": 1}}}, "logits_processors_args.logitbias"),
    ],
    ids=lambda value: value if isinstance(value, str) else json.dumps(value)[:60],
)
def test_wrong_field_is_named_by_its_path(strict_server: ServerProcess, fields: dict[str, Any], param: str) -> None:
    error = check_error(post(strict_server, {**BODY, **fields}), 400)
    assert error["param"] == param
    assert error["message"].startswith(f"{param}: ")
    assert error["code"]


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (2**70, "logits_processors_args.enable_your_logits_processor"),
        ("\ud800", "logits_processors_args.enable_your_logits_processor"),
        ([{"deep": [2**70]}], "logits_processors_args.enable_your_logits_processor"),
    ],
)
def test_argument_that_cannot_travel_is_refused(light_server: ServerProcess, value: Any, path: str) -> None:
    """A processor without Params takes anything, but it has to reach the worker."""
    args = {"enable_your_logits_processor": value}
    error = check_error(post(light_server, {**BODY, "logits_processors_args": args}), 400)
    assert error["param"].startswith(path)


def test_arguments_without_any_processor_say_how_to_declare_one(strict_server: ServerProcess) -> None:
    error = check_error(post(strict_server, {**BODY, "logits_processors_args": {"enable_mine": True}}), 400)
    assert "LogitBiasLogitsProcessor" in error["message"]
    assert "logit_bias" in error["message"]


def test_missing_messages_are_named(strict_server: ServerProcess) -> None:
    error = check_error(post(strict_server, {"max_tokens": 1}), 400)
    assert (error["param"], error["code"]) == ("messages", "missing_required_parameter")


def test_unknown_field_has_a_code_of_its_own(strict_server: ServerProcess) -> None:
    error = check_error(post(strict_server, {**BODY, "tempperature": 1}), 400)
    assert error["code"] == "unknown_parameter"
    assert error["message"] == "tempperature: this field is unknown or not supported yet; did you mean temperature?"


@pytest.mark.parametrize("name", ["qqqqqqq", "temperature" * 1000])
def test_a_field_like_no_other_has_no_suggestion(strict_server: ServerProcess, name: str) -> None:
    assert "did you mean" not in check_error(post(strict_server, {**BODY, name: 1}), 400)["message"]


def test_context_overflow_tells_the_numbers(strict_server: ServerProcess) -> None:
    error = check_error(post(strict_server, {**BODY, "max_tokens": 100_000}), 400)
    assert error["code"] == "context_length_exceeded"
    assert "160" in error["message"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "a body is needed"),
        (b"{", "no valid JSON"),
        (b'{"messages": [}', "no valid JSON"),
        (b"[]", "must be a JSON object"),
        (b'"Hi"', "must be a JSON object"),
        (b"null", "must be a JSON object"),
        (b"5", "must be a JSON object"),
        (b"\xff\xfe", "no valid JSON"),
        (b'{"messages": "\xff"}', "UTF-8"),
        (b"[" * 50_000, "nested"),
        (b'{"temperature": ' + b"1" * 5000 + b"}", "huge number"),
    ],
    ids=lambda value: repr(value[:24]),
)
def test_body_that_is_no_json_object_is_refused(strict_server: ServerProcess, content: bytes, reason: str) -> None:
    error = check_error(post(strict_server, content), 400)
    assert error["param"] is None
    assert reason in error["message"]


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("chat/completions", {**BODY, "response_format": "json"}, "response_format: must be a JSON object"),
        ("completions", {"prompt": ""}, "prompt: must not be empty"),
        ("completions", {"prompt": []}, "prompt: must not be empty"),
        ("embeddings", {"input": ""}, "input: must not be empty"),
    ],
)
def test_reasons_are_not_told_in_pythons_words(
    strict_server: ServerProcess, path: str, body: dict[str, Any], message: str
) -> None:
    assert check_error(httpx.post(f"{strict_server.url}/v1/{path}", json=body), 400)["message"] == message


@pytest.mark.parametrize("headers", [{"Content-Type": "text/plain"}, {}])
def test_content_type_has_to_be_json(strict_server: ServerProcess, headers: dict[str, str]) -> None:
    answer = httpx.post(chat_url(strict_server), content=json.dumps(BODY).encode(), headers=headers)
    assert "application/json" in check_error(answer, 400)["message"]


@pytest.mark.parametrize("path", ["/nowhere", "/v1/chat", "/v1/completions/chat", "/"])
def test_unknown_route_is_not_found(strict_server: ServerProcess, path: str) -> None:
    check_error(httpx.get(f"{strict_server.url}{path}"), 404)


@pytest.mark.parametrize(
    ("method", "path", "allowed"), [("GET", "/v1/chat/completions", "POST"), ("POST", "/v1/models", "GET")]
)
def test_wrong_method_is_not_allowed(strict_server: ServerProcess, method: str, path: str, allowed: str) -> None:
    answer = httpx.request(method, f"{strict_server.url}{path}")
    check_error(answer, 405)
    assert allowed in answer.headers["allow"]


def test_error_of_a_stream_comes_as_a_status(strict_server: ServerProcess) -> None:
    check_error(post(strict_server, {**BODY, "stream": True, "temperature": -1}), 400)


JUNK: list[Any] = [
    None,
    True,
    -1,
    0,
    0.5,
    2**63,
    2**70,
    -(2**70),
    1e308,
    float("nan"),
    float("-inf"),
    "",
    "word",
    "\ud800",
    "\x00",
    "🙂" * 200,
    [],
    [None],
    [[]],
    {},
    {"a": {"b": [1]}},
    {"5": 1e308},
]


def mutated(choose: random.Random) -> dict[str, Any]:
    """A rich, valid body with one to three of its values replaced; what bounds the work is only ever made invalid."""
    body: dict[str, Any] = {
        "model": "smol",
        "messages": [
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
        ],
        "max_tokens": 2,
        "n": 2,
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 20,
        "seed": 5,
        "stop": ["a", "b"],
        "stop_token_ids": [7],
        "ignore_eos": False,
        "stream": False,
        "logits_processors_args": {"logit_bias": {"5": 1.0}},
        "metadata": {"purpose": "test"},
    }
    for _ in range(choose.randint(1, 3)):
        target: Any = body
        key: Any = choose.choice(sorted(body))
        while isinstance(target[key], (dict, list)) and target[key] and choose.random() < 0.75:
            target = target[key]
            key = choose.choice(sorted(target)) if isinstance(target, dict) else choose.randrange(len(target))
        junk = copy.deepcopy(choose.choice(JUNK))
        target[key] = "junk" if key == "max_tokens" and junk is None else junk
    return body


@pytest.mark.parametrize("seed", range(MUTATIONS))
def test_mutated_body_is_never_a_fault_of_the_server(strict_server: ServerProcess, seed: int) -> None:
    answer = post(strict_server, mutated(random.Random(seed)))
    if answer.status_code != 200:
        assert answer.status_code in (400, 404)
        check_error(answer, answer.status_code)


def test_after_all_of_them_the_server_answers_as_another_of_its_model(
    strict_server: ServerProcess, light_server: ServerProcess
) -> None:
    body = {"messages": [{"role": "user", "content": "Write a poem."}], **GREEDY}
    answer, other = (post(each, body).json()["choices"][0]["message"] for each in (strict_server, light_server))
    assert answer["content"] == other["content"] != ""
