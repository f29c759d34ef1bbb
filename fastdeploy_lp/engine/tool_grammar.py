"""Grammars that hold a model to the calls of its tools, in the format of the parser that reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastdeploy_lp.engine.tool_parsers import ToolParser
from fastdeploy_lp.guided_decoding.grammar import with_whitespace
from fastdeploy_lp.guided_decoding.lark import Tagged, calls_only, free_text_with


@dataclass(frozen=True)
class CallableTool:
    """A function; `schema` is what its arguments are held to."""

    name: str
    schema: Mapping[str, Any]

    @classmethod
    def of(cls, name: str, parameters: Mapping[str, Any] | None) -> CallableTool:
        """Arguments are an object, whatever else `parameters` say of them."""
        return cls(name, {"type": "object", **(parameters or {})})


class ToolGrammar:
    """Writes grammars for one parser; without `any_whitespace` the JSON in them has none."""

    def __init__(self, parser: type[ToolParser], *, any_whitespace: bool) -> None:
        self._parser = parser
        self._any_whitespace = any_whitespace

    def calls(self, tools: Sequence[CallableTool], *, several: bool, answer: Mapping[str, Any] | None = None) -> str:
        """Nothing but calls, of which there are more only if `several`; or, if given, JSON of the schema `answer`."""
        if answer is not None:
            answer = with_whitespace(answer, any_whitespace=self._any_whitespace)
        return calls_only(self._tags(tools), several=several, answer=answer)

    def text_with_calls(self, tools: Sequence[CallableTool]) -> str:
        """Any text, in which what begins as a call is one."""
        return free_text_with(self._tags(tools), [self._parser.marker])

    def _tags(self, tools: Sequence[CallableTool]) -> list[Tagged]:
        tags = []
        for tool in tools:
            begin, end = self._parser.call_frame(tool.name)
            tags.append(Tagged(begin, with_whitespace(tool.schema, any_whitespace=self._any_whitespace), end))
        return tags
