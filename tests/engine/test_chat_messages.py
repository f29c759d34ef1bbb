from __future__ import annotations

from typing import Any

import pytest

from fastdeploy_lp.engine.chat_template import for_template
from fastdeploy_lp.engine.errors import InvalidRequestError


def call(arguments: Any) -> dict[str, Any]:
    return {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": arguments}}


def test_plain_messages_stay_as_they_are() -> None:
    messages = [{"role": "user", "content": "Hi", "name": "Ann"}, {"role": "tool", "content": "5", "tool_call_id": "c"}]
    assert for_template(messages) == messages


def test_parts_are_joined_and_the_system_role_has_its_older_name() -> None:
    parts = [{"type": "text", "text": "Be "}, {"type": "text", "text": "kind."}]
    assert for_template([{"role": "developer", "content": parts}]) == [{"role": "system", "content": "Be kind."}]


@pytest.mark.parametrize(("sent", "shown"), [('{"a": [1]}', {"a": [1]}), ("", {}), (" {} ", {}), ({"a": 1}, {"a": 1})])
def test_arguments_of_calls_are_objects_for_the_template(sent: Any, shown: dict[str, Any]) -> None:
    message = {"role": "assistant", "content": None, "tool_calls": [call(sent)]}
    (rendered,) = for_template([message])
    assert rendered == {"role": "assistant", "content": "", "tool_calls": [call(shown)]}
    assert message["tool_calls"] == [call(sent)], "the caller's own messages are left alone"


@pytest.mark.parametrize("arguments", ["{", "[1]", "5", '"{}"', "[" * 100_000])
def test_arguments_that_are_no_object_are_named(arguments: str) -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "tool_calls": [call("{}"), call(arguments)]}]
    with pytest.raises(InvalidRequestError) as caught:
        for_template(messages)
    assert caught.value.param == "messages.1.tool_calls.1.function.arguments"


@pytest.mark.parametrize("broken", [5, {}, {"function": "f"}])
def test_a_call_without_a_function_is_named(broken: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        for_template([{"role": "assistant", "tool_calls": [broken]}])
    assert caught.value.param == "messages.0.tool_calls.0"
