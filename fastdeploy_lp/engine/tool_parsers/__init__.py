"""Tool parsers by name: they separate tool calls from the answer's text."""

from __future__ import annotations

from fastdeploy_lp.engine.tool_parsers.base import ParsedText, ToolCallDelta, ToolParser
from fastdeploy_lp.engine.tool_parsers.hermes import HermesToolParser

TOOL_PARSERS: dict[str, type[ToolParser]] = {"hermes": HermesToolParser}


def find_tool_parser(name: str) -> type[ToolParser]:
    """Returns the parser of this name; raises ValueError listing the valid names."""
    if name not in TOOL_PARSERS:
        raise ValueError(f"tool_call_parser: {name!r} is none of {', '.join(TOOL_PARSERS)}")
    return TOOL_PARSERS[name]


def tool_parser_for(chat_template: str | None) -> type[ToolParser] | None:
    """Returns the parser for the call format in a chat template; None if the template has no known format."""
    shown = (parser for parser in TOOL_PARSERS.values() if chat_template and parser.marker in chat_template)
    return next(shown, None)


__all__ = ["TOOL_PARSERS", "ParsedText", "ToolCallDelta", "ToolParser", "find_tool_parser", "tool_parser_for"]
