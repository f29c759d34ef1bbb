"""Grammars that restrict a model to valid tool calls, in the format of their parser."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastdeploy_lp.engine.tool_parsers import ToolParser
from fastdeploy_lp.guided_decoding.grammar import with_whitespace
from fastdeploy_lp.guided_decoding.lark import Tagged, calls_only, free_text_with


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
    """Creates grammars for one parser; without `any_whitespace` their JSON has no whitespace."""

    def __init__(self, parser: type[ToolParser], *, any_whitespace: bool) -> None:
        self._parser = parser
        self._any_whitespace = any_whitespace

    def calls(self, tools: Sequence[CallableTool], *, several: bool, answer: Mapping[str, Any] | None = None) -> str:
        """Returns a grammar of one call, or more if `several`; or, if given, of JSON of the schema `answer`."""
        if answer is not None:
            answer = with_whitespace(answer, any_whitespace=self._any_whitespace)
        return calls_only(self._tags(tools), several=several, answer=answer)

    def text_with_calls(self, tools: Sequence[CallableTool]) -> str:
        """Returns a grammar of any text in which everything that begins as a call is a valid call."""
        return free_text_with(self._tags(tools), [self._parser.marker])

    def _tags(self, tools: Sequence[CallableTool]) -> list[Tagged]:
        tags = []
        for tool in tools:
            begin, end = self._parser.call_frame(tool.name)
            tags.append(Tagged(begin, with_whitespace(tool.schema, any_whitespace=self._any_whitespace), end))
        return tags
