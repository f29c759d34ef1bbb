"""The reason for an answer's end, at every border, plain and streamed."""

from __future__ import annotations

from typing import Any

import pytest
from support.chat import HELLO, chunks, encode, opened_stream, post
from support.forced import says
from support.server import ServerProcess

TEXT = " one two one two"
TOKENS = encode(TEXT)
TWO = TOKENS[1]


@pytest.mark.parametrize(
    ("fields", "reason", "text", "tokens"),
    [
        pytest.param({}, "stop", TEXT, 5, id="the model's own end"),
        pytest.param({"max_tokens": 5}, "stop", TEXT, 5, id="end of sequence as the last token that is allowed"),
        pytest.param({"max_tokens": 4}, "length", TEXT, 4, id="one token before it"),
        pytest.param({"max_tokens": 4, "stop": "one two one two"}, "stop", " ", 4, id="stop string ends at the limit"),
        pytest.param(
            {"max_tokens": 4, "stop": "two one tw"}, "stop", " one ", 4, id="stop string within the last token"
        ),
        pytest.param({"max_tokens": 4, "stop": "two one two."}, "length", TEXT, 4, id="stop string not quite complete"),
        pytest.param({"stop_token_ids": [TWO], "max_tokens": 2}, "stop", " one", 2, id="stop token at the limit"),
        pytest.param({"stop": "two", "min_tokens": 2}, "stop", " one two one ", 4, id="minimum passes a stop string"),
        pytest.param({"stop": "two", "min_tokens": 4}, "stop", TEXT, 5, id="minimum passes every stop string"),
        pytest.param(
            {"min_tokens": 6, "max_tokens": 6, "temperature": 1, "seed": 1},
            "length",
            None,
            6,
            id="minimum passes the end",
        ),
        pytest.param({"ignore_eos": True, "max_tokens": 7}, "length", None, 7, id="end of sequence ignored"),
    ],
)
def test_the_reason_is_right(
    scripted_server: ServerProcess, fields: dict[str, Any], reason: str, text: str | None, tokens: int
) -> None:
    body = {"messages": HELLO, "temperature": 0, **says(TEXT), **fields}
    plain = post(scripted_server, body)
    assert plain.status_code == 200, plain.text
    answer = plain.json()
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == reason
    assert text is None or choice["message"]["content"] == text
    assert answer["usage"]["completion_tokens"] == tokens
    with opened_stream(scripted_server, {**body, "stream_options": {"include_usage": True}}) as payloads:
        *parts, usage = chunks(payloads)
    assert [part["choices"][0]["finish_reason"] for part in parts] == [None] * (len(parts) - 1) + [reason]
    assert "".join(part["choices"][0]["delta"].get("content", "") for part in parts) == choice["message"]["content"]
    assert usage["usage"]["completion_tokens"] == tokens
