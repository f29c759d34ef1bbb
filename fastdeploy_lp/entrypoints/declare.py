"""From a program's arguments to a settled configuration and declared processors, for `LLM` and `AsyncLLM` alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fastdeploy_lp.config import EngineArgs, FDConfig, spec_of
from fastdeploy_lp.engine.reasoning_parsers import find_reasoning_parser
from fastdeploy_lp.engine.tool_parsers import find_tool_parser
from fastdeploy_lp.logits_processor import DeclaredProcessor, load_processors, vllm_compat


@dataclass(frozen=True)
class DeclaredEngine:
    """What an engine client is built from."""

    fd_config: FDConfig
    declared: list[DeclaredProcessor]


def declare(model: str, logits_processors: Sequence[str | type], options: dict[str, Any]) -> DeclaredEngine:
    """Check everything that can be checked before a model is loaded; raises ValueError naming the option."""
    try:
        args = EngineArgs(model=model, logits_processors=logits_processors, **options)  # type: ignore[arg-type]
    except TypeError as error:
        known = ", ".join(sorted(EngineArgs.__dataclass_fields__))
        raise ValueError(f"{str(error).split('() ')[-1]}; options are {known}") from None
    return declare_engine(args)


def declare_engine(args: EngineArgs, *, progress: bool = True) -> DeclaredEngine:
    """The same from `EngineArgs`; processors first, since finding the model may take a conversion."""
    if args.vllm_compat:
        vllm_compat.install()
    objects = {spec_of(given): given for given in args.logits_processors if not isinstance(given, str)}
    declared = load_processors([spec_of(given) for given in args.logits_processors], objects)
    names = [processor.name for processor in declared]
    for name in args.shadow:
        if name not in names:
            raise ValueError(f"shadow: {name!r} is not declared; declared are {', '.join(names) or 'none'}")
    if args.reasoning_parser is not None:
        find_reasoning_parser(args.reasoning_parser)
    if args.tool_call_parser is not None:
        find_tool_parser(args.tool_call_parser)
    return DeclaredEngine(args.create_fd_config(show_progress=progress), declared)
