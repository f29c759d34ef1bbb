"""JSON in which no object has a key twice."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastdeploy_lp.entrypoints.openai.body.shape import DuplicateKeyError, load_strict

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)


@settings(max_examples=30)
@given(values)
def test_what_json_writes_is_read(value: Any) -> None:
    assert load_strict(json.dumps(value)) == value


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ('{"a": 1, "a": 1}', "a"),
        ('{"a": 1, "\\u0061": 1}', "a"),
        ('{"x": [{"b": {"42": 1, "42": 5}}]}', "x.0.b.42"),
        ('[1, {"a": [], "a": 1}]', "1.a"),
        ('{"a": {"z": 1, "z": 1}, "a": 1}', "a"),
        ('{"": 1, "": 2}', ""),
    ],
)
def test_a_key_that_is_given_twice_is_named(text: str, path: str) -> None:
    for given_text in (text, text.encode()):
        with pytest.raises(DuplicateKeyError) as caught:
            load_strict(given_text)
        assert caught.value.path == path


@pytest.mark.parametrize("text", ["", "{", '{"a": 1, "a"', "nonsense"])
def test_what_is_no_json_is_as_before(text: str) -> None:
    with pytest.raises(json.JSONDecodeError):
        load_strict(text)
    assert load_strict('{"a": {"b": 1}, "c": {"b": 1}}') == {"a": {"b": 1}, "c": {"b": 1}}
