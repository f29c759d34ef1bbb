from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.pieces import cut, cuts

from fastdeploy_lp.engine.tool_parsers import ToolCallDelta, find_tool_parser, tool_parser_for
from fastdeploy_lp.engine.tool_parsers.hermes import HermesToolParser

Calls = list[tuple[str, str]]

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-9, 999)
    | st.text(max_size=6)
    | st.sampled_from(["</tool_call>", '{"', "\\"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
arguments = st.dictionaries(st.text(max_size=6), values, max_size=3)
names = st.from_regex(r"[a-z_]{1,12}", fullmatch=True)


def read(pieces: Sequence[str]) -> tuple[str, Calls]:
    parser = HermesToolParser()
    content, calls = "", list[list[str]]()
    for parsed in [*map(parser.push, pieces), parser.finish()]:
        content += parsed.content
        for delta in parsed.calls:
            if delta.name is not None:
                assert delta.index == len(calls)
                calls.append([delta.name, ""])
            calls[delta.index][1] += delta.arguments
    return content, [(name, given) for name, given in calls]


def written(name: str, given: dict[str, Any], *, last_key: str, indent: int | None, ascii_only: bool) -> str:
    fields = {"name": name, "arguments": given}
    ordered = {key: fields[key] for key in sorted(fields, key=lambda key: key == last_key)}
    return f"<tool_call>\n{json.dumps(ordered, indent=indent, ensure_ascii=ascii_only)}\n</tool_call>"


@settings(max_examples=300)
@given(
    text=st.sampled_from(["", "Let me look.", "1 < 2 \n"]),
    called=st.lists(st.tuples(names, arguments), min_size=1, max_size=3),
    last_key=st.sampled_from(["name", "arguments"]),
    indent=st.none() | st.just(2),
    ascii_only=st.booleans(),
    sizes=cuts,
)
def test_calls_are_read_however_they_are_written_and_cut(
    text: str,
    called: list[tuple[str, dict[str, Any]]],
    last_key: str,
    indent: int | None,
    ascii_only: bool,
    sizes: list[int],
) -> None:
    output = text + "\n".join(
        written(name, given, last_key=last_key, indent=indent, ascii_only=ascii_only) for name, given in called
    )
    content, calls = read(cut(output, sizes))
    assert content == text.rstrip()
    assert [(name, json.loads(given)) for name, given in calls] == called


@settings(max_examples=300)
@given(
    parts=st.lists(
        st.sampled_from(
            [
                "<tool_call>",
                "</tool_call>",
                '{"name": "f"',
                ', "arguments": ',
                '{"a": 1}',
                "}",
                " ",
                "\n",
                "text",
                "<",
                '"',
            ]
        ),
        max_size=10,
    ),
    sizes=cuts,
)
def test_pieces_give_what_the_whole_text_gives_valid_or_not(parts: list[str], sizes: list[int]) -> None:
    text = "".join(parts)
    whole = read([text])
    assert read(cut(text, sizes)) == whole
    if not whole[1]:
        assert whole[0] == text, "what is no call is answer, to the last character"


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ('<tool_call>{"name": "f"}</tool_call> Done.', "Done.", [("f", "{}")]),
        ('<tool_call>{"name": "f"}</tool_call></tool_call>', "</tool_call>", [("f", "{}")]),
        ('<tool_call>{"name": "f", "arguments": null}</tool_call>', "", [("f", "{}")]),
        ('<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', "", [("f", '{"a": 1}')]),
        ('<tool_call>{"name": "f", "arguments": {}}', "", [("f", "{}")]),
        ('<tool_call>{"name": "f", "arguments": {"a": [1, ', "", [("f", '{"a": [1, ')]),
        ('<tool_call>{"name": "f", "arguments": {"a": </tool_call> ok', "ok", [("f", '{"a": ')]),
        ('<tool_call>{"name": "f", "arguments": {"a": oops}}</tool_call>', "", [("f", '{"a": oops}')]),
        (
            '<tool_call>{"name": 5, "arguments": {}}</tool_call>',
            '<tool_call>{"name": 5, "arguments": {}}</tool_call>',
            [],
        ),
        ("so <tool_call>f(1)</tool_call>", "so <tool_call>f(1)</tool_call>", []),
        ('<tool_call>{"name": "f', '<tool_call>{"name": "f', []),
        ('<tool_call>{"name": "\\ud800"}</tool_call>', '<tool_call>{"name": "\\ud800"}</tool_call>', []),
    ],
)
def test_what_is_missing_or_broken(text: str, content: str, calls: Calls) -> None:
    assert read([text]) == read(list(text)) == (content, calls)


def test_the_name_comes_as_soon_as_it_is_whole_and_arguments_as_they_are_written() -> None:
    parser = HermesToolParser()
    pieces = [
        "Hi",
        " <tool",
        '_call>{"name": "get',
        '_it", ',
        '"arguments": {"ci',
        'ty": "Pa',
        'ris"}',
        "}",
        "</tool_call>",
    ]
    seen = [parser.push(piece) for piece in pieces]
    assert [each.content for each in seen] == ["Hi", *[""] * 8]
    assert [call for each in seen for call in each.calls] == [
        ToolCallDelta(0, "get_it"),
        ToolCallDelta(0, None, '{"ci'),
        ToolCallDelta(0, None, 'ty": "Pa'),
        ToolCallDelta(0, None, 'ris"}'),
    ]


def test_the_parser_is_found_by_name_or_by_what_a_template_shows() -> None:
    assert find_tool_parser("hermes") is HermesToolParser
    assert tool_parser_for("{{ '<tool_call>' }}") is HermesToolParser
    assert tool_parser_for("{{ messages }}") is None
    assert tool_parser_for(None) is None
    with pytest.raises(ValueError, match="tool_call_parser: 'mistral' is none of hermes"):
        find_tool_parser("mistral")
