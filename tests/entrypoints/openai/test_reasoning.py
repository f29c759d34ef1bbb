"""Reasoning apart from the answer, through the real client."""

from __future__ import annotations

from typing import Any

import openai
from support.chat import HELLO, MODEL, chunks, encode, opened_stream, post
from support.forced import says
from support.server import ServerProcess

THOUGHT, ANSWER = "\nHm, 🤔 <b>?\n", "\n\nYes."
TEXT = f"<think>{THOUGHT}</think>{ANSWER}"
WEATHER = {"type": "function", "function": {"name": "get_weather"}}
CALL = '<tool_call>{"name": "get_weather", "arguments": {}}</tool_call>'
# Those of both markers are reasoning, too.
REASONING_TOKENS = len(encode(f"<think>{THOUGHT}</think>"))


def ask(server: ServerProcess, text: str = TEXT, **fields: Any) -> dict[str, Any]:
    answer = post(server, {"messages": HELLO, **says(text), **fields})
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def streamed(server: ServerProcess, text: str = TEXT, **fields: Any) -> list[dict[str, Any]]:
    options = {"stream_options": {"include_usage": True}}
    with opened_stream(server, {"messages": HELLO, **says(text), **options, **fields}) as payloads:
        return chunks(payloads)


def gathered(parts: list[dict[str, Any]], name: str) -> str:
    return "".join(choice["delta"].get(name) or "" for part in parts for choice in part["choices"])


def test_the_client_gets_both(scripted: openai.Client) -> None:
    answer = scripted.chat.completions.create(model=MODEL, messages=HELLO, extra_body=says(TEXT))  # type: ignore[arg-type]
    message = answer.choices[0].message
    assert (message.content, message.model_extra) == (ANSWER, {"reasoning_content": THOUGHT})
    assert answer.usage is not None
    assert answer.usage.completion_tokens_details is not None
    assert answer.usage.completion_tokens_details.reasoning_tokens == REASONING_TOKENS
    assert answer.usage.completion_tokens == len(encode(TEXT)) + 1


def test_streamed_pieces_are_the_plain_answer(scripted_server: ServerProcess) -> None:
    plain, parts = ask(scripted_server), streamed(scripted_server)
    message = plain["choices"][0]["message"]
    assert gathered(parts, "reasoning_content") == message["reasoning_content"] == THOUGHT
    assert gathered(parts, "content") == message["content"] == ANSWER
    usage = parts[-1]["usage"]
    assert usage["completion_tokens_details"] == plain["usage"]["completion_tokens_details"]
    assert usage["completion_tokens"] == plain["usage"]["completion_tokens"]
    of_one_kind = [part["choices"][0]["delta"].keys() for part in parts[1:-2]]
    assert {tuple(kinds) for kinds in of_one_kind} == {("reasoning_content",), ("content",)}


def test_reasoning_is_left_out_on_request(scripted_server: ServerProcess) -> None:
    body = {"include_reasoning": False}
    plain, parts = ask(scripted_server, **body), streamed(scripted_server, **body)
    assert "reasoning_content" not in plain["choices"][0]["message"]
    assert gathered(parts, "reasoning_content") == ""
    assert gathered(parts, "content") == plain["choices"][0]["message"]["content"] == ANSWER
    assert plain["usage"]["completion_tokens_details"] == {"reasoning_tokens": REASONING_TOKENS}


def test_an_answer_without_reasoning_is_one_as_ever(scripted_server: ServerProcess) -> None:
    plain, parts = ask(scripted_server, "Yes. <think>"), streamed(scripted_server, "Yes. <think>")
    assert plain["choices"][0]["message"] == {"role": "assistant", "content": "Yes. <think>", "refusal": None}
    assert gathered(parts, "content") == "Yes. <think>"
    assert plain["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}


def test_reasoning_that_the_limit_ends_is_all_reasoning(scripted_server: ServerProcess) -> None:
    plain, parts = ask(scripted_server, max_tokens=6), streamed(scripted_server, max_tokens=6)
    (choice,) = plain["choices"]
    assert THOUGHT.startswith(choice["message"]["reasoning_content"])
    assert (choice["message"]["content"], choice["finish_reason"]) == ("", "length")
    assert gathered(parts, "reasoning_content") == choice["message"]["reasoning_content"]
    assert parts[-1]["usage"]["completion_tokens_details"] == {"reasoning_tokens": 6}


def test_a_call_comes_behind_the_reasoning(scripted_server: ServerProcess) -> None:
    text = f"<think>I could say {CALL}</think>{CALL}"
    message = ask(scripted_server, text, tools=[WEATHER])["choices"][0]["message"]
    assert message["reasoning_content"] == f"I could say {CALL}"
    assert (message["content"], len(message["tool_calls"])) == (None, 1)
    parts = streamed(scripted_server, text, tools=[WEATHER])
    assert gathered(parts, "reasoning_content") == message["reasoning_content"]
    assert parts[-2]["choices"][0]["finish_reason"] == "tool_calls"


def test_usage_in_every_chunk_counts_up(scripted_server: ServerProcess) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    parts = streamed(scripted_server, stream_options=options)
    counts = [part["usage"]["completion_tokens"] for part in parts]
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (0, len(encode(TEXT)) + 1)
    reasoning = [part["usage"]["completion_tokens_details"]["reasoning_tokens"] for part in parts]
    assert reasoning == sorted(reasoning)
    assert reasoning[-1] == REASONING_TOKENS
    assert all(part["usage"]["prompt_tokens"] == parts[0]["usage"]["prompt_tokens"] for part in parts)


def test_a_server_without_a_parser_gives_it_as_text(server: ServerProcess) -> None:
    answer = post(server, {"messages": HELLO, "max_tokens": 2}).json()
    assert "completion_tokens_details" not in answer["usage"]
    assert "reasoning_content" not in answer["choices"][0]["message"]
