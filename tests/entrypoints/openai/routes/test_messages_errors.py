"""Failures of the Messages API: in Anthropic's shape, by the names of its fields."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from support.chat import HELLO
from support.guarded import API_KEYS, MAX_BODY_SIZE, ROOT_PATH
from support.messages import WEATHER, body_of, post, streamed
from support.server import ServerProcess

MESSAGES, COUNT = "/v1/messages", "/v1/messages/count_tokens"


def check_error(answer: httpx.Response, status: int, kind: str) -> str:
    """The message of an error in Anthropic's shape."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert sorted(body) == ["error", "request_id", "type"]
    assert (body["type"], body["error"]["type"]) == ("error", kind)
    assert body["request_id"] == answer.headers["request-id"] == answer.headers["x-request-id"]
    assert set(body["error"]) <= {"type", "message", "details"}
    message: str = body["error"]["message"]
    assert message
    return message


def said(*blocks: Any, role: str = "user") -> dict[str, Any]:
    """A conversation that ends with these blocks."""
    return {"messages": [*HELLO, {"role": role, "content": list(blocks)}]}


CALLED = {"type": "tool_use", "id": "1", "name": "f", "input": {}}
IMAGE = {"type": "image", "source": {"type": "url", "url": "https://pages.example/a.png"}}
INVALID: list[tuple[str, dict[str, Any]]] = [
    ("max_tokens", {"max_tokens": None}),
    ("max_tokens", {"max_tokens": 0}),
    ("max_tokens", {"max_tokens": 10**6}),
    ("temperature", {"temperature": -1}),
    ("top_k", {"top_k": "many"}),
    ("messages", {"messages": []}),
    ("messages.0.role", {"messages": [{"role": "tool", "content": "a"}]}),
    ("messages.1.content.0.type", said(IMAGE)),
    ("messages.1.content.0.type", said({"type": "document"})),
    ("messages.1.content.0.type", said(CALLED)),
    ("messages.1.content.0.type", said({"type": "tool_result", "tool_use_id": "1"}, role="assistant")),
    ("messages.1.content.0.type", said({"type": "redacted_thinking", "data": "x"}, role="assistant")),
    ("messages.1.content.0.text", said({"type": "text", "text": 5})),
    ("messages.1.content.0", said({"text": "a"})),
    ("messages.1.content.0", said("a")),
    ("messages.1.content.0.citations", said({"type": "text", "text": "a", "citations": [{}]})),
    ("messages.1.content.0.cache_control.type", said({"type": "text", "text": "a", "cache_control": {"type": "long"}})),
    ("messages.1.content.0.input", said({**CALLED, "input": "{}"}, role="assistant")),
    ("messages.1.content", said(CALLED, role="assistant")),
    ("messages.1", said({"type": "text", "text": ""}, role="assistant")),
    ("messages.1.content.0.content.0.type", said({"type": "tool_result", "tool_use_id": "1", "content": [IMAGE]})),
    ("messages.1.content.0.tool_use_id", said({"type": "tool_result", "content": "a"})),
    ("system.0.type", {"system": [IMAGE]}),
    ("stop_sequences.0", {"stop_sequences": [""]}),
    ("stop", {"stop": "a"}),
    ("tools", {"tools": [WEATHER]}),
    ("tools.0.input_schema", {"tools": [{"name": "f"}]}),
    ("tools.0.name", {"tools": [{"name": "a b", "input_schema": {}}]}),
    ("tools.0.type", {"tools": [{"type": "bash_20250124", "name": "bash"}]}),
    ("tools.0.defer_loading", {"tools": [{**WEATHER, "defer_loading": True}]}),
    ("tool_choice", {"tool_choice": {"type": "auto"}}),
    ("tool_choice.name", {"tools": [WEATHER], "tool_choice": {"type": "tool"}}),
    ("tool_choice.name", {"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "other"}}),
    ("tool_choice.type", {"tools": [WEATHER], "tool_choice": {"type": "required"}}),
    ("thinking.type", {"thinking": {"type": "between_tools"}}),
    ("thinking.budget_tokens", {"thinking": {"type": "disabled", "budget_tokens": 5}}),
    ("output_config.format.schema", {"output_config": {"format": {"type": "json_schema", "schema": {"type": 7}}}}),
    (
        "output_config.effort",
        {"output_config": {"effort": "low"}, "chat_template_kwargs": {"reasoning_effort": "high"}},
    ),
    ("metadata.user", {"metadata": {"user": "somebody"}}),
    ("guided_regex", {"guided_regex": "a", "guided_choice": ["a"]}),
    ("guided_whitespace", {"guided_whitespace": "any"}),
    ("response_format", {"response_format": {"type": "json_object"}}),
    ("container", {"container": "c"}),
    ("speed", {"speed": "fast"}),
    ("n", {"n": 2}),
    ("logprobs", {"logprobs": True}),
    ("logits_processors_args.unheard_of", {"logits_processors_args": {"unheard_of": 1}}),
    ("never_heard_of", {"never_heard_of": 1}),
]


@pytest.mark.parametrize(("param", "fields"), INVALID)
def test_what_is_wrong_is_named(strict_server: ServerProcess, param: str, fields: dict[str, Any]) -> None:
    answer = httpx.post(f"{strict_server.url}{MESSAGES}", json=body_of(**fields))
    assert check_error(answer, 400, "invalid_request_error").startswith(f"{param}: ")


def test_images_are_refused_since_the_model_reads_text(strict_server: ServerProcess) -> None:
    answer = httpx.post(f"{strict_server.url}{COUNT}", json=said(IMAGE))
    assert "this model reads text" in check_error(answer, 400, "invalid_request_error")


def test_codes_are_where_clients_look_for_them(strict_server: ServerProcess) -> None:
    for fields, code in (
        ({"thread": {"type": "create"}}, "thread_unsupported_request"),
        ({"max_tokens": 10**6}, "context_length_exceeded"),
        ({"max_token": 5}, "unknown_parameter"),
    ):
        answer = httpx.post(f"{strict_server.url}{MESSAGES}", json=body_of(**fields))
        check_error(answer, 400, "invalid_request_error")
        assert answer.json()["error"]["details"] == {"error_code": code}


def test_a_field_that_is_misspelled_is_suggested(strict_server: ServerProcess) -> None:
    answer = httpx.post(f"{strict_server.url}{MESSAGES}", json=body_of(stop_sequence=["a"]))
    assert "did you mean stop_sequences?" in check_error(answer, 400, "invalid_request_error")


def test_values_that_ask_for_nothing_are_taken(strict_server: ServerProcess) -> None:
    nothing = {"n": 1, "speed": "standard", "mcp_servers": [], "container": None, "system": None, "metadata": {}}
    assert post(strict_server, max_tokens=1, **nothing)["type"] == "message"


def test_unknown_fields_are_dropped_by_a_lenient_server(scripted_server: ServerProcess) -> None:
    fields = {"context_management": {"edits": []}, "messages": [{"role": "user", "content": "Hi", "mood": "good"}]}
    assert post(scripted_server, max_tokens=1, **fields)["type"] == "message"


@pytest.mark.parametrize("content", [b"{", b'{"messages": [], "messages": []}', b"[" * 500, b"5"])
def test_what_is_no_body_is_an_error_in_the_same_shape(strict_server: ServerProcess, content: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    answer = httpx.post(f"{strict_server.url}{MESSAGES}", content=content, headers=headers)
    check_error(answer, 400, "invalid_request_error")


def test_another_model_is_not_found(strict_server: ServerProcess) -> None:
    for path in (MESSAGES, COUNT):
        body = {"messages": HELLO, "model": "claude-opus", **({"max_tokens": 1} if path == MESSAGES else {})}
        answer = httpx.post(f"{strict_server.url}{path}", json=body)
        assert "claude-opus" in check_error(answer, 404, "not_found_error")


def test_another_method_and_other_paths(strict_server: ServerProcess) -> None:
    check_error(httpx.get(f"{strict_server.url}{MESSAGES}"), 405, "invalid_request_error")
    assert "code" in httpx.get(f"{strict_server.url}{MESSAGES}/batches").json()["error"]


def test_the_time_of_a_request(strict_server: ServerProcess) -> None:
    answer = httpx.post(f"{strict_server.url}{MESSAGES}", json=body_of(timeout=1e-6))
    check_error(answer, 408, "timeout_error")


@pytest.mark.parametrize("prefix", ["", ROOT_PATH])
def test_what_stands_before_the_routes_answers_in_the_same_shape(guarded_server: ServerProcess, prefix: str) -> None:
    url = f"{guarded_server.url}{prefix}{MESSAGES}"
    check_error(httpx.post(url, json=body_of()), 401, "authentication_error")
    check_error(httpx.post(url, json=body_of(), headers={"x-api-key": "wrong"}), 401, "authentication_error")
    large = body_of(system="a" * MAX_BODY_SIZE)
    check_error(httpx.post(url, json=large, headers={"x-api-key": API_KEYS[1]}), 413, "invalid_request_error")


def test_a_request_that_fails_plain_and_streamed(scripted_server: ServerProcess) -> None:
    fields = {"max_tokens": 20, "ignore_eos": True, "logits_processors_args": {"boom": 3}}
    answer = httpx.post(f"{scripted_server.url}{MESSAGES}", json=body_of(**fields))
    told = check_error(answer, 500, "api_error")
    events = streamed(scripted_server, **fields)
    assert (events[0].name, events[-1].name) == ("message_start", "error")
    assert events[-1].data["error"] == answer.json()["error"]
    assert events[-1].data["error"]["message"] == told
    assert events[-1].data["request_id"]
