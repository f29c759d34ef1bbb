"""Lines of batches that are no requests."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastdeploy_lp.entrypoints.batch.files import ENDPOINTS, BadLineError, RequestLine, read_line

GOOD: dict[str, Any] = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "Hi"}}


@pytest.mark.parametrize("url", ENDPOINTS)
def test_a_request(url: str) -> None:
    expected = RequestLine("a", url, {"prompt": "Hi"})
    assert read_line(json.dumps({**GOOD, "url": url}).encode(), 1) == expected
    without_method = {name: value for name, value in GOOD.items() if name != "method"}
    assert read_line(json.dumps({**without_method, "url": url}).encode() + b"\r\n", 1) == expected


@pytest.mark.parametrize(
    ("line", "custom_id", "reason"),
    [
        (b"{", None, "no valid JSON"),
        (b'{"custom_id": "a\xff"}', None, "no valid JSON"),
        (b"[" * 100_000, None, "no valid JSON"),
        (b"[]", None, "must be a JSON object"),
        (b'"a"', None, "must be a JSON object"),
        ({"custom_id": None}, None, "custom_id: must be a string"),
        ({"custom_id": 5}, None, "custom_id: must be a string"),
        ({"custom_id": ""}, None, "custom_id: must be a string"),
        ({"method": "GET"}, "a", "method: must be POST, not 'GET'"),
        ({"url": "/v1/files"}, "a", "url: must be one of /v1/chat/completions, /v1/completions"),
        ({"url": ["/v1/completions"]}, "a", "url: must be one of"),
        ({"url": None}, "a", "url: must be one of"),
        ({"body": None}, "a", "body: must be a JSON object"),
        ({"body": "{}"}, "a", "body: must be a JSON object"),
        ({"body": {"stream": True}}, "a", "body.stream: a batch has no streams"),
        (
            b'{"custom_id": "a", "url": "/pooling", "body": {"logit_bias": {"42": 1, "42": 5}}}',
            "a",
            "body.logit_bias.42: this key is given twice",
        ),
        (b'{"custom_id": "a", "url": "/pooling", "url": "/pooling", "body": {}}', "a", "url: this key is given twice"),
        ({"priority": 1}, "a", "priority: is no field of a batch request; fields are custom_id"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_a_line_that_is_none_is_named(line: bytes | dict[str, Any], custom_id: str | None, reason: str) -> None:
    content = line if isinstance(line, bytes) else json.dumps({**GOOD, **line}).encode()
    with pytest.raises(BadLineError) as caught:
        read_line(content, 7)
    assert caught.value.custom_id == custom_id
    assert str(caught.value).startswith(f"line 7: {reason}")


@given(st.binary() | st.recursive(st.none() | st.text() | st.floats(), st.lists).map(lambda x: json.dumps(x).encode()))
def test_no_bytes_raise_anything_else(line: bytes) -> None:
    with pytest.raises(BadLineError):
        read_line(line, 1)
