"""The chat completion that a body of the Messages API asks for, and the names in its errors."""

from __future__ import annotations

from typing import Any

import pytest

from fastdeploy_lp.engine.errors import InvalidRequestError
from fastdeploy_lp.entrypoints.openai.protocol.anthropic.request import CountTokensRequest, MessagesRequest
from fastdeploy_lp.entrypoints.openai.translation.messages import TranslatedBody, translated

USER: list[dict[str, Any]] = [{"role": "user", "content": "Hello!"}]
TOOL = {"name": "f", "description": "F", "input_schema": {"type": "object"}, "strict": True}
OBJECT = {"type": "json_schema", "schema": {"type": "object"}}
CACHED = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}


def read(**fields: Any) -> TranslatedBody:
    return translated(MessagesRequest.model_validate({"max_tokens": 8, "messages": USER, **fields}))


def shown(**fields: Any) -> list[dict[str, Any]]:
    """The messages of the chat completion."""
    return [each.model_dump(exclude_none=True) for each in read(**fields).chat.messages]


def test_texts_of_a_message_are_joined() -> None:
    blocks = [{"type": "text", "text": "Hel", **CACHED}, {"type": "text", "text": "lo!", "citations": []}]
    assert shown(messages=[{"role": "user", "content": blocks}]) == USER
    assert shown(messages=[{"role": "user", "content": []}]) == [{"role": "user", "content": ""}]


@pytest.mark.parametrize("system", ["Be brief.", [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]])
def test_the_system_prompt_comes_first(system: Any) -> None:
    assert shown(system=system) == [{"role": "system", "content": "Be brief."}, *USER]


def test_a_system_message_stays_in_its_place() -> None:
    assert shown(messages=[*USER, {"role": "system", "content": "Hurry."}]) == [
        *USER,
        {"role": "system", "content": "Hurry."},
    ]


def test_calls_and_results_become_messages_with_their_ids() -> None:
    call = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"city": "Köln"}, "caller": {"type": "direct"}}
    thinking = {"type": "thinking", "thinking": "Hm.", "signature": "s"}
    results = [
        {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "22 C"}]},
        {"type": "tool_result", "tool_use_id": "toolu_2", "content": "late", "is_error": True},
        {"type": "tool_result", "tool_use_id": "toolu_3"},
        {"type": "text", "text": "And?"},
    ]
    assistant = {"role": "assistant", "content": [thinking, {"type": "text", "text": "Let me look."}, call]}
    _, answer, *rest = shown(messages=[*USER, assistant, {"role": "user", "content": results}])
    assert answer == {
        "role": "assistant",
        "content": "Let me look.",
        "reasoning_content": "Hm.",
        "tool_calls": [
            {"id": "toolu_1", "type": "function", "function": {"name": "f", "arguments": '{"city": "Köln"}'}}
        ],
    }
    assert rest == [
        {"role": "tool", "content": "22 C", "tool_call_id": "toolu_1"},
        {"role": "tool", "content": "Error: late", "tool_call_id": "toolu_2"},
        {"role": "tool", "content": "", "tool_call_id": "toolu_3"},
        {"role": "user", "content": "And?"},
    ]


def test_an_answer_without_text_is_continued_with_nothing() -> None:
    messages = [*USER, {"role": "assistant", "content": []}, *USER]
    assert shown(messages=messages)[1] == {"role": "assistant", "content": ""}


def test_the_last_message_of_the_assistant_is_continued() -> None:
    chat = read(messages=[*USER, {"role": "assistant", "content": "The best is ("}]).chat
    assert (chat.continue_final_message, chat.add_generation_prompt) == (True, False)
    assert not read().chat.continue_final_message


@pytest.mark.parametrize(
    ("choice", "expected", "parallel"),
    [
        ({"type": "auto"}, "auto", True),
        ({"type": "any", "disable_parallel_tool_use": True}, "required", False),
        ({"type": "none"}, "none", True),
        ({"type": "tool", "name": "f"}, {"type": "function", "function": {"name": "f"}}, True),
    ],
)
def test_tools_and_the_choice_among_them(choice: dict[str, Any], expected: Any, parallel: bool) -> None:
    chat = read(tools=[{**TOOL, **CACHED, "type": "custom"}], tool_choice=choice).chat.model_dump(exclude_none=True)
    assert chat["tools"] == [
        {
            "type": "function",
            "function": {"name": "f", "description": "F", "parameters": {"type": "object"}, "strict": True},
        }
    ]
    assert (chat["tool_choice"], chat["parallel_tool_calls"]) == (expected, parallel)


@pytest.mark.parametrize(
    ("thinking", "enabled"),
    [
        ({"type": "enabled", "budget_tokens": 1024}, True),
        ({"type": "adaptive", "display": "summarized"}, True),
        ({"type": "disabled"}, False),
        (None, None),
    ],
)
def test_thinking_is_a_variable_of_the_chat_template(thinking: Any, enabled: bool | None) -> None:
    assert read(thinking=thinking).chat.enable_thinking is enabled


def test_the_form_and_the_effort_of_the_answer() -> None:
    schema = {"type": "object", "properties": {}}
    config = {"effort": "max", "format": {"type": "json_schema", "schema": schema}}
    chat = read(output_config=config, chat_template_kwargs={"flavour": "mint"}).chat
    assert chat.template_kwargs == {"flavour": "mint", "reasoning_effort": "max"}
    assert chat.response_format is not None
    assert chat.response_format.schema_of_answer == schema


def test_fields_of_chat_completions_pass_as_they_are() -> None:
    own = {
        "seed": 5,
        "min_p": 0.5,
        "guided_regex": "a+",
        "logits_processors_args": {"logit_bias": {"5": 1.0}},
        "logits_processors_trace": {"top_k": 2},
        "timeout": 5.0,
        "stream": True,
    }
    chat = read(**own, stop_sequences=["a"], metadata={"user_id": "somebody"}, service_tier="auto").chat
    dumped = chat.model_dump(exclude_none=True)
    assert {name: dumped[name] for name in own} == own
    assert (dumped["stop"], dumped["max_tokens"]) == (["a"], 8)


def test_a_prompt_to_count_has_no_limit_of_tokens() -> None:
    chat = translated(CountTokensRequest.model_validate({"messages": USER, "system": "Be brief."})).chat
    assert (chat.max_tokens, len(chat.messages)) == (None, 2)


@pytest.mark.parametrize(
    ("sent", "named"),
    [
        ("tools.3.function.parameters.properties", "tools.3.input_schema.properties"),
        ("tools.0.function.name", "tools.0.name"),
        ("tool_choice.function.name", "tool_choice.name"),
        ("stop.0", "stop_sequences.0"),
        ("stop", "stop_sequences"),
        ("stop_token_ids.0", "stop_token_ids.0"),
        ("response_format.json_schema.schema", "output_config.format.schema"),
        ("enable_thinking", "thinking.type"),
        ("messages.0", "system"),
        ("messages.1.content", "messages.0"),
        ("messages.2.tool_calls.0.function.arguments", "messages.1"),
        ("messages.4", "messages.2"),
        ("messages", "messages"),
        ("continue_final_message", "messages.2"),
        ("max_tokens", "max_tokens"),
        ("", ""),
    ],
)
def test_errors_name_the_fields_that_were_sent(sent: str, named: str) -> None:
    call = {"type": "tool_use", "id": "1", "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "1"}
    messages = [*USER, {"role": "assistant", "content": [call]}]
    messages.append({"role": "user", "content": [result, {"type": "text", "text": "And?"}]})
    body = read(system="Be brief.", messages=messages)
    assert body.as_sent(InvalidRequestError(sent, "wrong")).param == named


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"guided_regex": "a", "tools": [TOOL]}, "guided_regex"),
        ({"guided_regex": "a", "output_config": {"format": OBJECT}}, "guided_regex"),
        ({"thinking": {"type": "disabled"}, "chat_template_kwargs": {"enable_thinking": True}}, "thinking.type"),
    ],
)
def test_fields_that_exclude_each_other_are_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        read(**fields)
    assert caught.value.param == param
    assert "response_format" not in str(caught.value)


def test_json_of_an_output_format_may_have_its_own_whitespace() -> None:
    guided = read(output_config={"format": OBJECT}, guided_whitespace="none").chat.guided_decoding
    assert guided is not None
    assert guided.whitespace == "none"
