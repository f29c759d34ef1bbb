"""What calls are held to, in the format that the parser reads."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.grammars import TinyGrammars
from support.tiny import write_tiny_checkpoint

from fastdeploy_lp.engine.message_parser import CallableTool, MessageParser, ToolGrammar
from fastdeploy_lp.engine.tool_parsers import TOOL_PARSERS, ToolParser
from fastdeploy_lp.request.guided_decoding import Whitespace

CITY = {"properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False}
TOOLS = [CallableTool.of("get_weather", CITY), CallableTool.of("now", None)]


@pytest.fixture(scope="module")
def grammars(tmp_path_factory: pytest.TempPathFactory) -> TinyGrammars:
    return TinyGrammars(write_tiny_checkpoint(tmp_path_factory.mktemp("tiny")))


@pytest.fixture(params=TOOL_PARSERS)
def parser(request: pytest.FixtureRequest) -> type[ToolParser]:
    return TOOL_PARSERS[request.param]


def call(parser: type[ToolParser], name: str, arguments: Any) -> str:
    begin, end = parser.call_frame(name)
    return begin + json.dumps(arguments, ensure_ascii=False) + end


def test_what_the_grammar_allows_is_read_as_calls(parser: type[ToolParser], grammars: TinyGrammars) -> None:
    text = "\n".join([call(parser, "get_weather", {"city": "Köln"}), call(parser, "now", {})])
    assert grammars.matches(ToolGrammar(parser, Whitespace()).calls(TOOLS, several=True), text)
    message = MessageParser(None, parser()).read(text)
    assert [(each.name, json.loads(each.arguments)) for each in message.tool_calls] == [
        ("get_weather", {"city": "Köln"}),
        ("now", {}),
    ]
    assert not message.content


@pytest.mark.parametrize(
    ("name", "arguments", "fits"),
    [
        ("get_weather", {"city": "x"}, True),
        ("get_weather", {}, False),
        ("get_weather", {"city": "x", "more": 1}, False),
        ("get_weather", "x", False),
        ("now", {"anything": [1]}, True),
        ("now", 5, False),
        ("never", {}, False),
    ],
    ids=str,
)
def test_arguments_are_held_to_the_schema(
    parser: type[ToolParser], grammars: TinyGrammars, name: str, arguments: Any, fits: bool
) -> None:
    grammar, text = ToolGrammar(parser, Whitespace()), call(parser, name, arguments)
    assert grammars.matches(grammar.calls(TOOLS, several=False), text) == fits
    assert grammars.matches(grammar.text_with_calls(TOOLS), f"Well, {text}\nDone.") == fits
    assert grammars.matches(grammar.text_with_calls(TOOLS), "Just text.")
    assert not grammars.matches(grammar.calls(TOOLS, several=False), "Just text.")


def test_whitespace_may_be_left_out(parser: type[ToolParser], grammars: TinyGrammars) -> None:
    compact = ToolGrammar(parser, Whitespace("none")).calls(TOOLS, several=False, answer={"type": "object"})
    assert not grammars.matches(compact, call(parser, "get_weather", {"city": "x"}))
    begin, end = parser.call_frame("get_weather")
    assert grammars.matches(compact, f'{begin}{{"city":"x"}}{end}')
    assert grammars.matches(compact, '{"a":1}')
    assert not grammars.matches(compact, '{"a": 1}')


def test_arguments_and_answers_have_the_whitespace_asked_for(parser: type[ToolParser], grammars: TinyGrammars) -> None:
    begin, end = parser.call_frame("get_weather")
    for whitespace, allowed in [(Whitespace(), False), (Whitespace("any"), True), (Whitespace(pattern="  "), True)]:
        grammar = ToolGrammar(parser, whitespace)
        forced = grammar.calls(TOOLS, several=False, answer={"type": "object"})
        assert grammars.matches(forced, f'{begin}{{"city":  "x"}}{end}') == allowed
        assert grammars.matches(forced, '{"a":  1}') == allowed
        assert grammars.matches(grammar.text_with_calls(TOOLS), f'{begin}{{"city":  "x"}}{end}') == allowed
