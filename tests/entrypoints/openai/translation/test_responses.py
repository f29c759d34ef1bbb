"""Conversations of items as chats, without a server."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from fastdeploy_lp.engine.errors import InvalidRequestError
from fastdeploy_lp.entrypoints.openai.protocol.chat import ChatCompletionRequest
from fastdeploy_lp.entrypoints.openai.protocol.response_items import ITEMS, InputItemList, as_stored
from fastdeploy_lp.entrypoints.openai.protocol.responses import ResponsesRequest
from fastdeploy_lp.entrypoints.openai.translation.responses import NAMES, SHARED, as_sent, chat_of

CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
SECOND = {"type": "function_call", "call_id": "c2", "name": "g", "arguments": "{}"}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "22"}
THOUGHT = {"type": "reasoning", "id": "rs", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}
TEXT = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "So.", "annotations": []}]}
USER = {"role": "user", "content": "Go"}
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}
G = {"type": "function", "name": "g"}


def chat(**fields: Any) -> ChatCompletionRequest:
    return chat_of(ResponsesRequest.model_validate({"input": "Go", **fields}))


def messages(*items: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
    return [each.model_dump(exclude_none=True) for each in chat(input=list(items), **fields).messages]


def called(*names: str) -> list[dict[str, Any]]:
    return [
        {"id": f"c{n}", "type": "function", "function": {"name": name, "arguments": "{}"}}
        for n, name in enumerate(names, 1)
    ]


def test_a_text_is_a_message_after_the_instructions() -> None:
    found = chat(instructions="Be brief.")
    assert [(each.role, each.content) for each in found.messages] == [("system", "Be brief."), ("user", "Go")]


def test_reasoning_text_and_calls_of_one_answer_are_one_message() -> None:
    found = messages(USER, THOUGHT, TEXT, CALL, SECOND, RESULT)
    answer = {"role": "assistant", "reasoning_content": "Hm.", "content": "So.", "tool_calls": called("f", "g")}
    assert found[1:] == [answer, {"role": "tool", "tool_call_id": "c1", "content": "22"}]


def test_two_texts_are_two_messages_and_reasoning_begins_none_of_its_own() -> None:
    roles = [(each["role"], each.get("content")) for each in messages(USER, TEXT, THOUGHT, TEXT, USER)]
    assert roles == [("user", "Go"), ("assistant", "So."), ("assistant", "So."), ("user", "Go")]


def test_reasoning_after_an_answer_belongs_to_the_next_one() -> None:
    first, second = messages(USER, TEXT, THOUGHT, CALL)[1:]
    assert first == {"role": "assistant", "content": "So."}
    assert second == {"role": "assistant", "reasoning_content": "Hm.", "tool_calls": called("f")}


def test_parts_of_a_message_stay_parts() -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    (found,) = messages({"role": "user", "content": parts})
    assert found["content"] == [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]


def test_every_shared_field_reaches_the_chat_unchanged() -> None:
    values: dict[str, Any] = {
        "temperature": 0.5,
        "logit_bias": {"5": 1.0},
        "stop": ["x"],
        "guided_regex": "a+",
        "logits_processors": {"A": {}},
        "logits_processors_trace": {"top_k": 2},
        "chat_template_kwargs": {"a": 1},
        "stream": True,
    }
    found = chat(**values)
    assert {name: found.model_dump(exclude_none=True)[name] for name in values} == values
    assert ChatCompletionRequest.model_fields.keys() >= SHARED


def test_other_fields_get_the_names_of_a_chat() -> None:
    schema = {"type": "object"}
    found = chat(
        max_output_tokens=7,
        top_logprobs=3,
        reasoning={"effort": "low", "summary": "auto"},
        text={"verbosity": "high", "format": {"type": "json_schema", "name": "x", "schema": schema}},
    )
    assert (found.max_tokens, found.logprobs, found.top_logprobs) == (7, True, 3)
    assert found.template_kwargs == {"reasoning_effort": "low", "verbosity": "high"}
    assert found.response_format is not None
    assert found.response_format.schema_of_answer == schema
    assert chat(include=["message.output_text.logprobs"]).num_logprobs == 0
    assert chat().num_logprobs is None


@pytest.mark.parametrize(
    ("choice", "offered", "expected"),
    [
        ("auto", ["f", "g"], "auto"),
        (G, ["f", "g"], "g"),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "g"}]},
            ["g"],
            "required",
        ),
    ],
)
def test_a_choice_of_tools(choice: Any, offered: list[str], expected: str) -> None:
    found = chat(tools=[TOOL, G], tool_choice=choice)
    assert [tool.function.name for tool in found.tools or []] == offered
    assert (found.chosen_tool or found.tool_choice) == expected


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [G]}}, "tool_choice.tools"),
        ({"reasoning": {"effort": "low"}, "chat_template_kwargs": {"reasoning_effort": "high"}}, "reasoning.effort"),
        ({"tools": [TOOL], "guided_regex": "a+"}, "guided_regex"),
        ({"guided_regex": "a+", "text": {"format": {"type": "json_object"}}}, "guided_regex"),
        ({"input": []}, "input"),
    ],
)
def test_an_error_of_the_chat_names_the_field_that_was_sent(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        chat(**fields)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("path", "sent"),
    [
        *((name, own) for name, own in NAMES.items()),
        ("messages.3.content", "input.3.content"),
        ("response_format.json_schema.schema", "text.format.schema"),
        ("tools.2.function.parameters.type", "tools.2.parameters.type"),
        ("temperature", "temperature"),
    ],
)
def test_paths_of_errors(path: str, sent: str) -> None:
    assert as_sent(InvalidRequestError(path, "no")).param == sent


def test_stored_items_have_ids_and_parts_and_are_the_same_conversation() -> None:
    items = [USER, THOUGHT, TEXT, CALL, RESULT, {"role": "assistant", "content": "Yes."}]
    stored = as_stored(ITEMS.validate_python(items))
    again = ITEMS.validate_json(stored)
    assert all(item.id for item in again)
    assert again[1].id == "rs"
    before = messages(*items)
    assert [
        each.model_dump(exclude_none=True)
        for each in chat_of(ResponsesRequest.model_validate({"input": "More"}), again).messages
    ] == [*before, {"role": "user", "content": "More"}]


def test_pages_of_items() -> None:
    items = [{"id": str(n)} for n in range(5)]
    first = InputItemList.page(items, None, 2, descending=False)
    assert ([each["id"] for each in first.data], first.last_id, first.has_more) == (["0", "1"], "1", True)
    last = InputItemList.page(items, "1", 3, descending=False)
    assert ([each["id"] for each in last.data], last.has_more) == (["2", "3", "4"], False)
    assert [each["id"] for each in InputItemList.page(items, "3", 9, descending=True).data] == ["2", "1", "0"]
    assert InputItemList.page([], None, 9, descending=True).data == []
    with pytest.raises(ValueError, match="not in list"):
        InputItemList.page(items, "9", 1, descending=True)


def test_what_can_be_included_is_a_closed_list() -> None:
    kinds = get_args(get_args(get_args(ResponsesRequest.model_fields["include"].annotation)[0])[0])
    assert "message.output_text.logprobs" in kinds
    with pytest.raises(ValueError, match=r"include\.0"):
        ResponsesRequest.model_validate({"input": "Go", "include": ["everything"]})


def test_json_of_a_text_format_may_have_its_own_whitespace() -> None:
    form = {"type": "json_schema", "name": "a", "schema": {"type": "object"}}
    chat = chat_of(
        ResponsesRequest.model_validate({"input": "Go", "text": {"format": form}, "guided_whitespace": "none"})
    )
    assert chat.guided_decoding is not None
    assert chat.guided_decoding.whitespace == "none"
