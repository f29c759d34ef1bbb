"""Tool parsers by name: calls of tools apart from the answer's text."""

from __future__ import annotations

from fastdeploy_lp.engine.tool_parsers.base import ParsedText, ToolCallDelta, ToolParser
from fastdeploy_lp.engine.tool_parsers.hermes import HermesToolParser

TOOL_PARSERS: dict[str, type[ToolParser]] = {"hermes": HermesToolParser}


def find_tool_parser(name: str) -> type[ToolParser]:
    """The parser of this name; raises ValueError that lists the valid ones."""
    if name not in TOOL_PARSERS:
        raise ValueError(f"tool_call_parser: {name!r} is none of {', '.join(TOOL_PARSERS)}")
    return TOOL_PARSERS[name]


def tool_parser_for(chat_template: str | None) -> type[ToolParser] | None:
    """The parser for the calls that a chat template shows to the model, None if it shows none that are known."""
    shown = (parser for parser in TOOL_PARSERS.values() if chat_template and parser.marker in chat_template)
    return next(shown, None)


__all__ = ["TOOL_PARSERS", "ParsedText", "ToolCallDelta", "ToolParser", "find_tool_parser", "tool_parser_for"]
