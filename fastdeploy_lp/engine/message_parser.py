"""Parses a chat completion's text into a message: reasoning, answer and tool calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastdeploy_lp.config import ChatConfig
from fastdeploy_lp.engine.reasoning_parsers import ReasoningParser, find_reasoning_parser
from fastdeploy_lp.engine.tool_parsers import ToolCallDelta, ToolParser, find_tool_parser, tool_parser_for
from fastdeploy_lp.engine.tool_parsers.base import ParsedText
from fastdeploy_lp.guided_decoding.grammar import Tagged, calls_only, free_text_with, with_whitespace
from fastdeploy_lp.request.guided_decoding import Whitespace
from fastdeploy_lp.request.phase import Parts, Section


@dataclass
class ToolCall:
    """A tool call by the model; `arguments` is JSON as the model wrote it, valid or not."""

    name: str
    arguments: str = ""


@dataclass
class Message:
    """A parsed completion; the parts exclude their markers."""

    content: str = ""
    reasoning_content: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)


@dataclass(frozen=True)
class MessageDelta:
    """An addition to a message."""

    content: str = ""
    reasoning_content: str = ""
    tool_calls: list[ToolCallDelta] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to send."""
        return not (self.content or self.reasoning_content or self.tool_calls)


class MessageParser:
    """Parses one completion incrementally, reasoning first; with `parallel` False, drops calls after the first."""

    def __init__(self, reasoning: ReasoningParser | None, tools: ToolParser | None, *, parallel: bool = True) -> None:
        self._reasoning = reasoning
        self._tools = tools
        self._parallel = parallel
        self.called_tools = False

    @property
    def reasoning_length(self) -> int:
        """Characters up to the end of the reasoning, markers included."""
        return self._reasoning.length if self._reasoning is not None else 0

    def push(self, text: str, *, finished: bool = False) -> MessageDelta:
        """Returns what is certain after this piece of text, and everything else if it is the last piece."""
        reasoning, content = "", text
        if self._reasoning is not None:
            split = self._reasoning.push(text)
            reasoning, content = split.reasoning, split.content
            if finished:
                rest = self._reasoning.finish()
                reasoning, content = reasoning + rest.reasoning, content + rest.content
        if self._tools is None:
            return MessageDelta(content, reasoning)
        parsed = self._tools.push(content)
        if finished:
            rest_of_call = self._tools.finish()
            parsed = ParsedText(parsed.content + rest_of_call.content, parsed.calls + rest_of_call.calls)
        calls = [call for call in parsed.calls if self._parallel or call.index == 0]
        self.called_tools = self.called_tools or bool(calls)
        return MessageDelta(parsed.content, reasoning, calls)

    def read(self, text: str) -> Message:
        """Parses a whole text."""
        delta = self.push(text, finished=True)
        message = Message(delta.content, delta.reasoning_content)
        for call in delta.tool_calls:
            if call.name is not None:
                message.tool_calls.append(ToolCall(call.name))
            message.tool_calls[-1].arguments += call.arguments
        return message


class MessageParsers:
    """The parsers that a server is configured with; raises ValueError for an unknown parser.

    `parts` are the parts of an output that they separate, for phases; none if every output is an answer. `tool_parser`
    is the tool call parser, or None. `reads_tools`: tool calls can be parsed. `reads_reasoning`: reasoning is separated
    from the answer.
    """

    def __init__(self, config: ChatConfig, chat_template: str | None) -> None:
        named = find_tool_parser(config.tool_call_parser) if config.tool_call_parser is not None else None
        self.tool_parser: type[ToolParser] | None = (
            (named or tool_parser_for(chat_template)) if config.enable_auto_tool_choice else None
        )
        self.reads_tools = self.tool_parser is not None
        self._reasoning = find_reasoning_parser(config.reasoning_parser) if config.reasoning_parser else None
        self.reads_reasoning = self._reasoning is not None
        self.parts: Parts = _parts(self._reasoning, self.tool_parser)

    def new(self, *, tools: bool, parallel: bool = True, reasoning: bool = True) -> MessageParser | None:
        """Returns a parser for one completion; None if all of its text is the answer.

        reasoning: False for an answer that cannot contain reasoning.
        """
        reasoning_parser = self._reasoning() if reasoning and self._reasoning is not None else None
        tool_parser = self.tool_parser() if tools and self.tool_parser is not None else None
        if reasoning_parser is None and tool_parser is None:
            return None
        return MessageParser(reasoning_parser, tool_parser, parallel=parallel)


@dataclass(frozen=True)
class CallableTool:
    """A function; `schema` is the JSON Schema of its arguments."""

    name: str
    schema: Mapping[str, Any]

    @classmethod
    def of(cls, name: str, parameters: Mapping[str, Any] | None) -> CallableTool:
        """Creates a tool; its arguments are an object, unless `parameters` has another `type`."""
        return cls(name, {"type": "object", **(parameters or {})})


class ToolGrammar:
    """Creates grammars for one parser; their JSON has this whitespace between its parts."""

    def __init__(self, parser: type[ToolParser], whitespace: Whitespace) -> None:
        self._parser = parser
        self._whitespace = whitespace

    def calls(self, tools: Sequence[CallableTool], *, several: bool, answer: Mapping[str, Any] | None = None) -> str:
        """Returns a grammar of one call, or more if `several`; or, if given, of JSON of the schema `answer`."""
        if answer is not None:
            answer = with_whitespace(answer, self._whitespace)
        return calls_only(self._tags(tools), several=several, answer=answer)

    def text_with_calls(self, tools: Sequence[CallableTool]) -> str:
        """Returns a grammar of any text in which everything that begins as a call is a valid call."""
        return free_text_with(self._tags(tools), [self._parser.marker])

    def _tags(self, tools: Sequence[CallableTool]) -> list[Tagged]:
        tags = []
        for tool in tools:
            begin, end = self._parser.call_frame(tool.name)
            tags.append(Tagged(begin, with_whitespace(tool.schema, self._whitespace), end))
        return tags


def _parts(reasoning: type[ReasoningParser] | None, tools: type[ToolParser] | None) -> Parts:
    """Returns the sections of each part: reasoning and answer with a reasoning parser, tool_call with a tool parser."""
    parts: dict[str, tuple[Section, ...]] = {}
    if reasoning is not None:
        parts["reasoning"] = (*_reasoning_sections(reasoning, inside=True), Section(False, may_end=True))
        parts["answer"] = (*_reasoning_sections(reasoning, inside=False), Section(True))
    if tools is not None:
        before = () if reasoning is None else _reasoning_sections(reasoning, inside=False)
        text = len(before)
        calls = (Section(False, tools.marker, then=text + 1, may_end=True), Section(True, tools.end_marker, then=text))
        parts["tool_call"] = (*before, *calls)
    return parts


def _reasoning_sections(parser: type[ReasoningParser], *, inside: bool) -> tuple[Section, ...]:
    """Returns the sections up to the end of the reasoning; the section after them has the next index."""
    if parser.reasons_unmarked:
        return (Section(inside, parser.end, then=1),)
    return (Section(False, parser.begin, then=1, opening=True, otherwise=2), Section(inside, parser.end, then=2))
