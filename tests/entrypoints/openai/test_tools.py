"""Tools, from the request to calls in the answer, through the real client."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from support.chat import HELLO, MODEL, encode, post
from support.forced import says
from support.server import ServerProcess

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "What the weather is like",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
ARGUMENTS = {"city": "Köln 🏙", "days": [1, 2], "units": {"temperature": "°C"}}
CALL = f'<tool_call>\n{{"name": "get_weather", "arguments": {json.dumps(ARGUMENTS, ensure_ascii=False)}}}\n</tool_call>'
SECOND = '<tool_call>{"arguments": {}, "name": "now"}</tool_call>'


def ask(client: openai.Client, text: str, **fields: Any) -> ChatCompletion:
    """The answer of a model that says this text; unknown fields go through `extra_body`."""
    own = {name: fields.pop(name) for name in list(fields) if name in ("skip_special_tokens", "return_token_ids")}
    asked = {"messages": HELLO, "tools": [WEATHER], **fields}
    answer: ChatCompletion = client.chat.completions.create(model=MODEL, **asked, extra_body={**says(text), **own})
    return answer


def streamed(client: openai.Client, text: str, **fields: Any) -> list[ChatCompletionChunk]:
    asked = {"messages": HELLO, "tools": [WEATHER], **fields}
    return list(client.chat.completions.create(model=MODEL, stream=True, **asked, extra_body=says(text)))


def calls_of(answer: ChatCompletion) -> list[tuple[str, Any]]:
    calls = answer.choices[0].message.tool_calls or []
    assert all(call.type == "function" for call in calls)
    return [(call.function.name, json.loads(call.function.arguments)) for call in calls if call.type == "function"]


def gathered(chunks: list[ChatCompletionChunk]) -> tuple[str, list[tuple[str, str]], str | None]:
    """Content, calls and finish reason; checks the order in which a call's parts come."""
    content, calls, reasons = "", list[list[str]](), []
    for choice in (choice for chunk in chunks for choice in chunk.choices):
        content += choice.delta.content or ""
        for call in choice.delta.tool_calls or []:
            assert call.function is not None
            if call.index == len(calls):
                assert call.id
                assert call.type == "function"
                calls.append([call.function.name or "", ""])
            else:
                assert (call.id, call.type, call.function.name) == (None, None, None)
            calls[call.index][1] += call.function.arguments or ""
        if choice.finish_reason is not None:
            reasons.append(choice.finish_reason)
    assert len(reasons) == 1
    return content, [(name, arguments) for name, arguments in calls], reasons[0]


def refusal(server: ServerProcess, **fields: Any) -> dict[str, Any]:
    answer = post(server, {"messages": HELLO, "max_tokens": 1, **fields})
    assert answer.status_code == 400, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert error["message"].startswith(f"{error['param']}: ")
    return error


def test_a_call_is_read(scripted: openai.Client) -> None:
    answer = ask(scripted, CALL)
    assert calls_of(answer) == [("get_weather", ARGUMENTS)]
    (choice,) = answer.choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)


def test_text_and_several_calls_are_read(scripted: openai.Client) -> None:
    answer = ask(scripted, f"Let me look.\n{CALL}\n{SECOND}")
    assert answer.choices[0].message.content == "Let me look."
    assert calls_of(answer) == [("get_weather", ARGUMENTS), ("now", {})]
    assert len({call.id for call in answer.choices[0].message.tool_calls or []}) == 2


def test_without_parallel_calls_there_is_one(scripted: openai.Client) -> None:
    text = f"{CALL}\n{SECOND}"
    assert calls_of(ask(scripted, text, parallel_tool_calls=False)) == [("get_weather", ARGUMENTS)]
    _, calls, _ = gathered(streamed(scripted, text, parallel_tool_calls=False))
    assert [name for name, _ in calls] == ["get_weather"]


def test_an_answer_without_calls_is_one_as_ever(scripted: openai.Client) -> None:
    answer = ask(scripted, "It is sunny. <b>1 < 2</b>")
    assert answer.choices[0].message.content == "It is sunny. <b>1 < 2</b>"
    assert answer.choices[0].message.tool_calls is None
    assert answer.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("text", [CALL, f"Let me look.\n{CALL}\n{SECOND}", "Sunny.", f"{CALL} Done."])
def test_streamed_pieces_are_the_plain_answer(scripted: openai.Client, text: str) -> None:
    plain, chunks = ask(scripted, text), streamed(scripted, text)
    content, calls, reason = gathered(chunks)
    message = plain.choices[0].message
    assert content == (message.content or "")
    assert [(name, json.loads(arguments)) for name, arguments in calls] == calls_of(plain)
    assert reason == plain.choices[0].finish_reason
    pieces = [chunk for chunk in chunks for choice in chunk.choices if choice.delta.tool_calls]
    assert len(pieces) >= 10 * text.count("get_weather"), "arguments come as they are written"


def test_the_limit_in_the_middle_of_a_call_is_a_limit(scripted: openai.Client) -> None:
    answer = ask(scripted, CALL, max_tokens=24)
    (call,) = answer.choices[0].message.tool_calls or []
    assert answer.choices[0].finish_reason == "length"
    assert call.type == "function"
    assert call.function.arguments
    assert json.dumps(ARGUMENTS, ensure_ascii=False).startswith(call.function.arguments)
    assert gathered(streamed(scripted, CALL, max_tokens=24))[2] == "length"


def test_tool_choice_none_hides_the_tools_and_reads_no_calls(scripted: openai.Client) -> None:
    answer = ask(scripted, CALL, tool_choice="none")
    assert answer.choices[0].message.content == CALL
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    offered = ask(scripted, CALL).usage
    assert offered is not None
    assert answer.usage.prompt_tokens < offered.prompt_tokens


def test_a_conversation_with_calls_and_their_results_goes_on(scripted: openai.Client) -> None:
    first = ask(scripted, CALL)
    message = first.choices[0].message.model_dump(exclude_none=True)
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "22 °C"}
    answer = ask(scripted, "22 °C, and sunny.", messages=[*HELLO, message, result])
    assert answer.choices[0].message.content == "22 °C, and sunny."


def test_logprobs_of_a_call_are_those_of_all_its_tokens(scripted: openai.Client) -> None:
    plain = ask(scripted, CALL, logprobs=True)
    assert plain.choices[0].logprobs is not None
    expected = [each.token for each in plain.choices[0].logprobs.content or []]
    chunks = streamed(scripted, CALL, logprobs=True)
    choices = [choice for chunk in chunks for choice in chunk.choices if choice.logprobs is not None]
    assert [each.token for choice in choices for each in (choice.logprobs.content or [])] == expected
    assert len(expected) == len(encode(CALL)) + 1


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"tools": [{**WEATHER, "type": "retrieval"}]}, "tools.0.type"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools.0.function.name"),
        ({"tools": [{"type": "function", "function": {"name": "f", "strict": 1}}]}, "tools.0.function.strict"),
        ({"tools": [{"type": "function"}]}, "tools.0.function"),
        ({"tools": [WEATHER], "tool_choice": "sometimes"}, "tool_choice"),
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"function_call": "auto"}, "function_call"),
        ({"messages": [{"role": "tool", "content": "5"}]}, "messages.0.tool_call_id"),
        ({"messages": [{"role": "user", "content": "5", "tool_call_id": "c"}]}, "messages.0.tool_call_id"),
        ({"messages": [{"role": "assistant"}]}, "messages.0.content"),
        (
            {
                "messages": [
                    {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "["}}]}
                ]
            },
            "messages.0.tool_calls.0.function.arguments",
        ),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": "",
                        "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": ""}}],
                    }
                ]
            },
            "messages.0.tool_calls",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else json.dumps(value)[:60],
)
def test_what_is_wrong_with_tools_is_named(scripted_server: ServerProcess, fields: dict[str, Any], param: str) -> None:
    assert refusal(scripted_server, **fields)["param"] == param


def test_a_model_whose_template_knows_no_tools_refuses_them(light_server: ServerProcess) -> None:
    error = refusal(light_server, tools=[WEATHER])
    assert error["param"] == "tools"
    assert "chat template" in error["message"]


def test_a_template_that_does_not_show_tools_is_told_of(scripted_server: ServerProcess) -> None:
    error = refusal(scripted_server, tools=[WEATHER], chat_template="{{ messages[0].content }}")
    assert error["param"] == "tools"


@pytest.mark.parametrize(
    "nothing", [{"tools": []}, {"tools": None, "tool_choice": "none"}, {"response_format": {"type": "text"}}]
)
def test_fields_that_ask_for_no_tools_are_accepted(light_server: ServerProcess, nothing: dict[str, Any]) -> None:
    assert post(light_server, {"messages": HELLO, "max_tokens": 1, **nothing}).status_code == 200
