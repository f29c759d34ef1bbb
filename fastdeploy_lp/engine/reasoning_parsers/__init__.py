"""Reasoning parsers by name: they separate a model's reasoning from its answer."""

from __future__ import annotations

from fastdeploy_lp.engine.reasoning_parsers.base import ReasoningParser, SplitText
from fastdeploy_lp.engine.reasoning_parsers.think import DeepSeekR1Parser, Qwen3Parser

REASONING_PARSERS: dict[str, type[ReasoningParser]] = {"deepseek_r1": DeepSeekR1Parser, "qwen3": Qwen3Parser}


def find_reasoning_parser(name: str) -> type[ReasoningParser]:
    """Returns the parser of this name; raises ValueError listing the valid names."""
    if name not in REASONING_PARSERS:
        raise ValueError(f"reasoning_parser: {name!r} is none of {', '.join(REASONING_PARSERS)}")
    return REASONING_PARSERS[name]


__all__ = ["REASONING_PARSERS", "ReasoningParser", "SplitText", "find_reasoning_parser"]
