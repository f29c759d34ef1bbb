"""POST /v1/messages and /v1/messages/count_tokens: what a message holds, whole and as events."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from support.chat import HELLO, encode
from support.forced import says
from support.messages import ARGUMENTS, CALL, WEATHER, Event, gathered, post, streamed
from support.server import ServerProcess

COUNT = "/v1/messages/count_tokens"
FRAMED_CALL = CALL.replace("<tool_call>", "<tool_call>\n").replace("</tool_call>", "\n</tool_call>")
THOUGHT = "<think>Hm.</think>"


def both(server: ServerProcess, **fields: Any) -> dict[str, Any]:
    """The plain answer, which has to be what the events of the streamed one come to but for ids."""
    plain = post(server, **fields)
    events = streamed(server, **fields)
    check_order(events)
    again = gathered(events)
    for message in (plain, again):
        assert message["id"].startswith("msg_")
        for block in message["content"]:
            if block["type"] == "tool_use":
                assert block.pop("id").startswith("toolu_")
            if block["type"] == "thinking":
                assert block.pop("signature") == message["id"]
    # The second answer may find the prompt of the first one in the cache.
    assert prompt_tokens(plain) == prompt_tokens(again)
    shown = [{name: each[name] for name in each if name not in ("id", "usage")} for each in (plain, again)]
    assert shown[0] == shown[1]
    assert plain["usage"]["output_tokens"] == again["usage"]["output_tokens"]
    return plain


def prompt_tokens(message: dict[str, Any]) -> int:
    usage = message["usage"]
    return int(usage["input_tokens"] + usage["cache_read_input_tokens"])


def check_order(events: list[Event]) -> None:
    """Every event has its type as its name; blocks come one after another, between the first and the last events."""
    assert all(event.name == event.data["type"] for event in events)
    names = [event.name for event in events]
    assert names[:2] == ["message_start", "ping"]
    assert names[-2:] == ["message_delta", "message_stop"]
    place = -1
    is_open = False
    for event in events[2:-2]:
        if event.name == "content_block_start":
            assert not is_open
            place, is_open = place + 1, True
        assert is_open
        assert event.data["index"] == place
        is_open = event.name != "content_block_stop"
    assert not is_open


def test_a_text(scripted_server: ServerProcess) -> None:
    text = "It is sunny. <b>1 < 2</b> 北京"
    message = both(scripted_server, **says(text))
    assert message["content"] == [{"type": "text", "text": text}]
    assert (message["type"], message["role"], message["model"]) == ("message", "assistant", "smollm2-135m")
    assert (message["stop_reason"], message["stop_sequence"]) == ("end_turn", None)
    assert message["usage"]["output_tokens"] == len(encode(text)) + 1


def test_the_same_text_as_a_chat_completion(scripted_server: ServerProcess) -> None:
    body = {"messages": HELLO, "max_tokens": 12, "temperature": 0}
    chat = httpx.post(f"{scripted_server.url}/v1/chat/completions", json=body).json()
    message = both(scripted_server, max_tokens=12)
    assert message["content"] == [{"type": "text", "text": chat["choices"][0]["message"]["content"]}]
    assert prompt_tokens(message) == chat["usage"]["prompt_tokens"]


def test_the_token_limit_and_stop_sequences_end_a_message(scripted_server: ServerProcess) -> None:
    words = says("one two three")
    limited = both(scripted_server, **words, max_tokens=2)
    assert (limited["stop_reason"], limited["stop_sequence"]) == ("max_tokens", None)
    stopped = both(scripted_server, **words, stop_sequences=["zero", "wo t"])
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", "wo t")
    assert stopped["content"] == [{"type": "text", "text": "one t"}]


def test_a_stop_token_is_told_by_its_text(scripted_server: ServerProcess) -> None:
    (token,) = encode(" two")
    message = both(scripted_server, **says("one two three"), stop_token_ids=[token])
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", " two")


def test_an_answer_without_text_has_no_blocks(scripted_server: ServerProcess) -> None:
    message = both(scripted_server, **says(""))
    assert (message["content"], message["stop_reason"]) == ([], "end_turn")


def test_thinking_is_a_block_of_its_own(scripted_server: ServerProcess) -> None:
    message = both(scripted_server, **says(f"{THOUGHT}Yes."), thinking={"type": "adaptive"})
    assert message["content"] == [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "Yes."}]
    assert message["usage"]["output_tokens_details"] == {"thinking_tokens": len(encode(THOUGHT))}


def test_thinking_is_left_out_on_request(scripted_server: ServerProcess) -> None:
    hidden = {"type": "adaptive", "display": "omitted"}
    message = both(scripted_server, **says(f"{THOUGHT}Yes."), thinking=hidden, return_token_ids=True)
    assert message["content"] == [{"type": "thinking", "thinking": ""}, {"type": "text", "text": "Yes."}]
    assert message["token_ids"] == [*encode(f"{THOUGHT}Yes."), 2]


def test_thinking_changes_the_prompt_as_the_template_says(scripted_server: ServerProcess) -> None:
    usual, off = (
        post(scripted_server, max_tokens=1, return_token_ids=True, **fields)["prompt_token_ids"]
        for fields in ({}, {"thinking": {"type": "disabled"}})
    )
    assert off == [*usual, *encode("<think></think>\n")]


@pytest.mark.parametrize("calls", [1, 2])
def test_calls_are_blocks(scripted_server: ServerProcess, calls: int) -> None:
    message = both(scripted_server, **says(f"{THOUGHT}Let me look.\n{CALL * calls}"), tools=[WEATHER])
    called = {"type": "tool_use", "name": "get_weather", "input": ARGUMENTS}
    assert message["content"] == [
        {"type": "thinking", "thinking": "Hm."},
        {"type": "text", "text": "Let me look."},
        *[called] * calls,
    ]
    assert message["stop_reason"] == "tool_use"


def test_the_input_of_a_call_comes_as_it_is_written(scripted_server: ServerProcess) -> None:
    events = streamed(scripted_server, **says(CALL), tools=[WEATHER])
    pieces = [event.data["delta"]["partial_json"] for event in events if event.name == "content_block_delta"]
    assert len(pieces) > 5
    assert json.loads("".join(pieces)) == ARGUMENTS


@pytest.mark.parametrize(
    ("choice", "calls"),
    [
        ({"type": "any"}, 2),
        ({"type": "any", "disable_parallel_tool_use": True}, 1),
        ({"type": "tool", "name": "get_weather"}, 1),
    ],
)
def test_calls_can_be_required(scripted_server: ServerProcess, choice: dict[str, Any], calls: int) -> None:
    text = "\n".join([FRAMED_CALL] * calls)
    message = both(scripted_server, **says(text), tools=[WEATHER], tool_choice=choice)
    assert [(block["name"], block["input"]) for block in message["content"]] == [("get_weather", ARGUMENTS)] * calls


def test_without_tools_to_choose_from_a_call_is_text(scripted_server: ServerProcess) -> None:
    message = both(scripted_server, **says(CALL), tools=[WEATHER], tool_choice={"type": "none"})
    assert message["content"] == [{"type": "text", "text": CALL}]


def test_of_an_input_that_the_limit_cuts_the_whole_members_are_told(scripted_server: ServerProcess) -> None:
    call = '<tool_call>{"name": "get_weather", "arguments": {"city": "Bonn", "days": [1, 2, 3], "when": "tomorrow'
    message = post(scripted_server, **says(call), tools=[WEATHER], max_tokens=len(encode(call)))
    (block,) = message["content"]
    assert block["input"] == {"city": "Bonn", "days": [1, 2, 3]}
    assert message["stop_reason"] == "max_tokens"


def test_a_conversation_with_a_call_goes_on(scripted_server: ServerProcess) -> None:
    first = post(scripted_server, **says(f"{THOUGHT}{CALL}"), tools=[WEATHER])
    result = {"type": "tool_result", "tool_use_id": first["content"][-1]["id"], "content": "22 °C"}
    messages = [*HELLO, {"role": "assistant", "content": first["content"]}, {"role": "user", "content": [result]}]
    again = both(scripted_server, **says("22 °C, and sunny."), tools=[WEATHER], messages=messages)
    assert again["content"] == [{"type": "text", "text": "22 °C, and sunny."}]


def test_the_beginning_of_an_answer_is_continued(scripted_server: ServerProcess) -> None:
    messages = [*HELLO, {"role": "assistant", "content": "The best is ("}]
    message = post(scripted_server, **says("B)"), messages=messages, return_token_ids=True)
    assert message["content"] == [{"type": "text", "text": "B)"}]
    begun = encode("The best is (")
    assert message["prompt_token_ids"][-len(begun) :] == begun


def test_an_answer_in_json(scripted_server: ServerProcess) -> None:
    schema = {"type": "object", "properties": {"a": {"const": 5}}, "required": ["a"], "additionalProperties": False}
    output = {"format": {"type": "json_schema", "schema": schema}}
    # A random model may begin to reason, which puts the schema off.
    message = both(scripted_server, output_config=output, guided_when={"after_tokens": 0})
    assert json.loads(message["content"][0]["text"]) == {"a": 5}


def test_traces_and_token_ids_come_with_the_events(scripted_server: ServerProcess) -> None:
    fields = {"return_token_ids": True, "logits_processors_trace": {"top_k": 1}}
    events = streamed(scripted_server, **says(f"{THOUGHT}one two"), **fields)
    message = gathered(events)
    expected = [*encode(f"{THOUGHT}one two"), 2]
    assert message["token_ids"] == [each["token_id"] for each in message["logits_processors_trace"]] == expected
    plain = post(scripted_server, **says(f"{THOUGHT}one two"), **fields)
    assert plain["token_ids"] == [each["token_id"] for each in plain["logits_processors_trace"]] == expected
    assert plain["prompt_token_ids"] == message["prompt_token_ids"]


def test_the_prefix_cache_is_told_apart_from_new_tokens(scripted_server: ServerProcess) -> None:
    messages = [{"role": "user", "content": "a prompt that is long enough for some blocks of the cache " * 8}]
    first, second = (post(scripted_server, max_tokens=1, messages=messages)["usage"] for _ in range(2))
    # Other tests may have left the template's first tokens.
    assert second["cache_read_input_tokens"] > first["cache_read_input_tokens"] < 16
    assert first["cache_creation_input_tokens"] == 0
    whole = [each["input_tokens"] + each["cache_read_input_tokens"] for each in (first, second)]
    assert whole[0] == whole[1]
    start, *_, end, _ = streamed(scripted_server, max_tokens=1, messages=messages)
    assert start.data["message"]["usage"]["output_tokens"] == 0
    assert end.data["usage"] == second


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"system": "Be brief."},
        {"tools": [WEATHER]},
        {"thinking": {"type": "disabled"}},
        {"messages": [*HELLO, {"role": "assistant", "content": "So"}]},
        {"chat_template": "{{ messages[0].content }}"},
    ],
)
def test_counted_tokens_are_those_of_the_prompt(scripted_server: ServerProcess, fields: dict[str, Any]) -> None:
    body = {"messages": HELLO, **fields}
    counted = httpx.post(f"{scripted_server.url}{COUNT}", json=body)
    assert counted.status_code == 200, counted.text
    message = post(scripted_server, max_tokens=1, **fields)
    assert counted.json() == {"input_tokens": prompt_tokens(message)}


def test_a_prompt_beyond_the_context_is_counted(scripted_server: ServerProcess) -> None:
    messages = [{"role": "user", "content": "word " * 5000}]
    assert httpx.post(f"{scripted_server.url}{COUNT}", json={"messages": messages}).json()["input_tokens"] > 5000
    error = post(scripted_server, status=400, messages=messages)["error"]
    assert error["message"].startswith("messages: the prompt has")


def test_an_id_of_the_request_names_its_message(scripted_server: ServerProcess) -> None:
    assert post(scripted_server, max_tokens=1, request_id="mine")["id"] == "msg_mine"
