"""Parts of an output that the configured parsers separate, as sections of phases."""

from __future__ import annotations

from fastdeploy_lp.engine.reasoning_parsers import ReasoningParser
from fastdeploy_lp.engine.tool_parsers import ToolParser
from fastdeploy_lp.request.phase import Parts, Section


def output_parts(reasoning: type[ReasoningParser] | None, tools: type[ToolParser] | None) -> Parts:
    """Returns the sections of each part: reasoning and answer with a reasoning parser, tool_call with a tool parser."""
    parts: dict[str, tuple[Section, ...]] = {}
    if reasoning is not None:
        parts["reasoning"] = (*_reasoning(reasoning, inside=True), Section(False, may_end=True))
        parts["answer"] = (*_reasoning(reasoning, inside=False), Section(True))
    if tools is not None:
        before = () if reasoning is None else _reasoning(reasoning, inside=False)
        text = len(before)
        calls = (Section(False, tools.marker, then=text + 1, may_end=True), Section(True, tools.end_marker, then=text))
        parts["tool_call"] = (*before, *calls)
    return parts


def _reasoning(parser: type[ReasoningParser], *, inside: bool) -> tuple[Section, ...]:
    """Returns the sections up to the end of the reasoning; the section after them has the next index."""
    if parser.reasons_unmarked:
        return (Section(inside, parser.end, then=1),)
    return (Section(False, parser.begin, then=1, opening=True, otherwise=2), Section(inside, parser.end, then=2))
