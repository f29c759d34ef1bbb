from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from support.pieces import cut, cuts

from fastdeploy_lp.config import ChatConfig
from fastdeploy_lp.engine.message_parser import Message, MessageParser, MessageParsers, ToolCall

HERMES = "{{ '<tool_call>' }}"
CALL = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
SECOND = '<tool_call>{"name": "g", "arguments": {}}</tool_call>'


def parser(*, reasoning: str | None = "qwen3", tools: bool = True, parallel: bool = True) -> MessageParser:
    found = MessageParsers(ChatConfig(reasoning_parser=reasoning), HERMES).new(tools=tools, parallel=parallel)
    assert found is not None
    return found


def gathered(reader: MessageParser, pieces: list[str]) -> Message:
    message = Message()
    for place, piece in enumerate(pieces):
        delta = reader.push(piece, finished=place == len(pieces) - 1)
        message.content += delta.content
        message.reasoning_content += delta.reasoning_content
        for call in delta.tool_calls:
            if call.name is not None:
                message.tool_calls.append(ToolCall(call.name))
            message.tool_calls[call.index].arguments += call.arguments
    return message


def test_reasoning_comes_first_and_calls_in_it_are_none() -> None:
    text = f"<think>I could write {CALL}.</think>\nLooking.\n{CALL}"
    message = parser().read(text)
    assert message == Message("\nLooking.", f"I could write {CALL}.", [ToolCall("f", '{"a": 1}')])


@given(
    parts=st.lists(
        st.sampled_from(["<think>", "</think>", CALL, SECOND, " word", "\n", "<tool"]), min_size=1, max_size=6
    ),
    sizes=cuts,
    reasoning=st.sampled_from([None, "qwen3", "deepseek_r1"]),
    parallel=st.booleans(),
)
def test_pieces_give_what_the_whole_text_gives(
    parts: list[str], sizes: list[int], reasoning: str | None, parallel: bool
) -> None:
    text = "".join(parts)
    whole, piecewise = (parser(reasoning=reasoning, parallel=parallel) for _ in range(2))
    message = whole.read(text)
    assert gathered(piecewise, cut(text, sizes)) == message
    assert piecewise.reasoning_length == whole.reasoning_length
    assert whole.called_tools == piecewise.called_tools == bool(message.tool_calls)


def test_without_parallel_calls_the_first_alone_counts() -> None:
    text = f"{CALL}\n{SECOND}"
    assert [call.name for call in parser().read(text).tool_calls] == ["f", "g"]
    assert [call.name for call in parser(parallel=False).read(text).tool_calls] == ["f"]


def test_a_request_without_tools_gets_its_calls_as_text() -> None:
    assert parser(tools=False).read(CALL) == Message(CALL)


def test_where_there_is_nothing_to_read_there_is_no_parser() -> None:
    assert MessageParsers(ChatConfig(), HERMES).new(tools=False) is None
    assert MessageParsers(ChatConfig(), None).new(tools=True) is None
    assert (
        MessageParsers(ChatConfig(enable_auto_tool_choice=False, tool_call_parser="hermes"), HERMES).new(tools=True)
        is None
    )


def test_what_a_server_reads_is_settled_by_its_options_and_template() -> None:
    assert MessageParsers(ChatConfig(), HERMES).reads_tools
    assert not MessageParsers(ChatConfig(), "{{ messages }}").reads_tools
    assert MessageParsers(ChatConfig(tool_call_parser="hermes"), "{{ messages }}").reads_tools
    assert not MessageParsers(ChatConfig(enable_auto_tool_choice=False), HERMES).reads_tools
    assert MessageParsers(ChatConfig(reasoning_parser="qwen3"), None).reads_reasoning
    assert not MessageParsers(ChatConfig(), HERMES).reads_reasoning
