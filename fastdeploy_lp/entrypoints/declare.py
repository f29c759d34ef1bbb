"""Converts a program's arguments into a configuration and declared processors, for `LLM` and `AsyncLLM`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.config.option_values import spec_of
from fastdeploy_lp.config.tile_choice import tile_choice
from fastdeploy_lp.engine.reasoning_parsers import find_reasoning_parser
from fastdeploy_lp.engine.tool_parsers import find_tool_parser
from fastdeploy_lp.logits_processor import DeclaredProcessor, fastdeploy_compat, load_processors, vllm_compat
from fastdeploy_lp.platforms import current_platform
from fastdeploy_lp.plugins import load_general_plugins
from fastdeploy_lp.plugins.general import warn_of_unknown_names
from fastdeploy_lp.plugins.io_processor import NamedIOProcessor, find_io_processor
from fastdeploy_lp.plugins.stat_logger import (
    StatLoggerBase,
    StatLoggerFactory,
    given_stat_loggers,
    installed_stat_loggers,
)
from fastdeploy_lp.startup.engine_args import EngineArgs

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class DeclaredEngine:
    """The parts that an engine is built from; `stat_loggers` has one list per worker."""

    fd_config: FDConfig
    declared: list[DeclaredProcessor]
    stat_loggers: list[list[tuple[str, StatLoggerBase]]] = field(default_factory=list)
    io_processor: NamedIOProcessor | None = None


def declare(
    model: str,
    logits_processors: Sequence[str | type],
    options: dict[str, Any],
    stat_loggers: Sequence[StatLoggerFactory] = (),
) -> DeclaredEngine:
    """Runs all checks that do not require a loaded model; raises ValueError naming the option."""
    try:
        args = EngineArgs(model=model, logits_processors=logits_processors, **options)
    except TypeError as error:
        known = ", ".join(sorted(EngineArgs.__dataclass_fields__))
        raise ValueError(f"{str(error).split('() ')[-1]}; options are {known}") from None
    return declare_engine(args, stat_loggers=stat_loggers)


def declare_engine(
    args: EngineArgs, *, progress: bool = True, stat_loggers: Sequence[StatLoggerFactory] = ()
) -> DeclaredEngine:
    """Does the same for `EngineArgs`; processors first, since resolving the model may require a conversion.

    Loads plugins before resolving any setting. Raises PluginError, a ValueError, for a plugin that prevents the start.
    """
    if args.vllm_compat:
        vllm_compat.install()
    if args.fastdeploy_compat:
        fastdeploy_compat.install()
    warn_of_unknown_names()
    load_general_plugins()
    # Errors that prevent the start are raised here, not after a conversion.
    current_platform()
    tile_choice()
    objects = {spec_of(given): given for given in args.logits_processors if not isinstance(given, str)}
    declared = load_processors(
        args.processor_specs, objects, mandatory=args.mandatory, vllm_entry_points=args.vllm_compat
    )
    _require_shadows(args, declared)
    _warn_of_idle(declared)
    if args.reasoning_parser is not None:
        find_reasoning_parser(args.reasoning_parser)
    if args.tool_call_parser is not None:
        find_tool_parser(args.tool_call_parser)
    loggers = [*installed_stat_loggers(), *given_stat_loggers(stat_loggers)]
    io_processor = None if args.io_processor_plugin is None else find_io_processor(args.io_processor_plugin)
    fd_config = args.create_fd_config(show_progress=progress)
    return DeclaredEngine(
        fd_config,
        declared,
        [[source.build(fd_config, rank) for source in loggers] for rank in range(args.data_parallel_size)],
        None if io_processor is None else io_processor.build(fd_config),
    )


def _require_shadows(args: EngineArgs, declared: Sequence[DeclaredProcessor]) -> None:
    names = [processor.name for processor in declared]
    for name in args.shadow:
        if name not in names:
            raise ValueError(f"shadow: {name!r} is not declared; declared are {', '.join(names) or 'none'}")
    for name in args.mandatory:
        if name in args.shadow:
            raise ValueError(f"mandatory: {name} is in shadow, where it changes nothing; take it out of one of the two")


def _warn_of_idle(declared: Sequence[DeclaredProcessor]) -> None:
    """Warns of mandatory processors that change only requests with arguments, which may be a mistake."""
    for processor in declared:
        if processor.mandatory and getattr(processor.found, "only_with_args", False):
            logger.warning(
                "mandatory: %s changes only requests that pass it arguments; any other request is served without it",
                processor.name,
            )
