"""Fields that the server does not know: refused by name, or ignored where the operator says so."""

from __future__ import annotations

from typing import Any

import pytest
from support.chat import HELLO, chunks, opened_stream, post
from support.forced import says
from support.server import ServerProcess

from fastdeploy_lp.request.limits import MAX_BODY_DEPTH

BODY: dict[str, Any] = {"messages": HELLO, **says("Yes.")}
MARKED = [{"type": "text", "text": "Hello!", "cache_control": {"type": "ephemeral"}}]


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"top_a": 1}, "top_a"),
        ({"stream": True, "stream_options": {"chunk_size": 5}}, "stream_options.chunk_size"),
        ({"messages": [{**HELLO[0], "mood": {"a": [1]}}]}, "messages.0.mood"),
        ({"messages": [{"role": "user", "content": MARKED}]}, "messages.0.content.0.cache_control"),
        ({"with.dots": 1}, "with.dots"),
    ],
)
def test_an_unknown_field_is_refused_or_ignored(
    server: ServerProcess, scripted_server: ServerProcess, fields: dict[str, Any], path: str
) -> None:
    refused = post(server, {"messages": HELLO, **fields})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, path)
    if fields.get("stream"):
        with opened_stream(scripted_server, {**BODY, **fields}) as payloads:
            assert chunks(payloads)
    else:
        answer = post(scripted_server, {**BODY, **fields})
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0]["message"]["content"] == "Yes."


def test_many_of_them_leave_the_rest_as_it_was(scripted_server: ServerProcess) -> None:
    message = {"role": "user", "content": MARKED, "mood": "good"}
    body = {**BODY, "messages": [message, {**message, "name": "Ann"}], "a": 1, "b": None, "return_token_ids": True}
    plain = {**BODY, "messages": [HELLO[0], {**HELLO[0], "name": "Ann"}], "return_token_ids": True}
    answers = [post(scripted_server, each).json() for each in (body, plain)]
    assert answers[0]["prompt_token_ids"] == answers[1]["prompt_token_ids"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"top_a": 1, "temperature": -1}, "temperature"),
        ({"top_a": 1, "temperature": "hot"}, "temperature"),
        ({"messages": [{"mood": "good", "role": "wizard", "content": "Hi"}]}, "messages.0.role"),
        ({"audio": {}}, "audio"),
    ],
)
def test_what_is_wrong_or_known_and_not_served_is_refused_all_the_same(
    scripted_server: ServerProcess, fields: dict[str, Any], param: str
) -> None:
    refused = post(scripted_server, {**BODY, **fields})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize("depth", [10, MAX_BODY_DEPTH - 2, 500, 900])
@pytest.mark.parametrize("other", [{}, {"chat_template_kwargs": None}])
def test_a_deeply_nested_one_is_no_failure(scripted_server: ServerProcess, depth: int, other: dict[str, Any]) -> None:
    deep: dict[str, Any] = {}
    for _ in range(depth):
        deep = {"a": deep}
    answer = post(scripted_server, {**BODY, "unheard": deep, **dict.fromkeys(other, deep)})
    assert answer.status_code in (200, 400), answer.text
    assert answer.status_code == 200 or depth > MAX_BODY_DEPTH - 2


def test_each_name_is_warned_of_once(scripted_server: ServerProcess) -> None:
    for _ in range(3):
        assert post(scripted_server, {**BODY, "never_heard_of": 1}).status_code == 200
    warnings = [line for line in scripted_server.log.splitlines() if "never_heard_of" in line]
    assert len(warnings) == 1
    assert "WARNING" in warnings[0]
