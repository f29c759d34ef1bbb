"""The contract of stat loggers, which receive the engine's statistics, and their sources."""

from __future__ import annotations

import inspect
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.plugins.loader import failure, load_group
from fastdeploy_lp.plugins.plugin import LoadedPlugin, Plugin, PluginError, PluginGroup
from fastdeploy_lp.stats import IterationStats, SchedulerStats


class StatLoggerBase(ABC):
    """Receives the statistics of each iteration of one engine, on the API process's event loop: no method may block.

    A logger that raises is reported with its traceback and not called again; requests are not affected.
    """

    @abstractmethod
    def __init__(self, fd_config: FDConfig, engine_index: int = 0) -> None:
        """Runs before the model loads, once per worker; an exception aborts the start. engine_index: the worker's."""

    @abstractmethod
    def record(
        self, scheduler_stats: SchedulerStats | None, iteration_stats: IterationStats | None, engine_idx: int = 0
    ) -> None:
        """Receives both after each message of the worker; one alone for an event between two messages.

        The arguments must not be changed.
        """

    def log(self) -> None:  # noqa: B027 - most have nothing to do
        """Runs every `--log-stats-interval` seconds, and once more at the end."""

    @abstractmethod
    def log_engine_initialized(self) -> None:
        """Runs when the model is loaded and requests are accepted."""


# A subclass, or any callable that makes a logger from a configuration and the engine's number.
StatLoggerFactory: TypeAlias = Callable[[FDConfig, int], StatLoggerBase]


logger = logging.getLogger(__name__)

WHAT = "a class derived from fastdeploy_lp.StatLoggerBase"


@dataclass(frozen=True)
class StatLoggerSource:
    """Factory of a stat logger; `plugin` is None for one passed by a program."""

    name: str
    make: StatLoggerFactory
    plugin: Plugin | None = None

    def build(self, fd_config: FDConfig, engine_index: int = 0) -> tuple[str, StatLoggerBase]:
        """Builds the logger of one worker; returns its name and the logger.

        Logs the cause and raises ValueError naming the logger if that fails.
        """
        try:
            made = self.make(fd_config, engine_index)
        except (Exception, SystemExit) as error:
            if self.plugin is not None:
                raise failure(self.plugin, "cannot be made", error) from error
            logger.exception("stat logger %s cannot be made", self.name)
            cause = " ".join(f"{type(error).__name__}: {error}".split())
            raise ValueError(f"stat_loggers: {self.name} cannot be made: {cause}") from error
        if not isinstance(made, StatLoggerBase):
            raise ValueError(f"stat_loggers: {self.name} made a {type(made).__name__}; it must make {WHAT}")
        return self.name, made


def installed_stat_loggers() -> list[StatLoggerSource]:
    """Returns the loggers of plugins that may load, by name; raises PluginError for one that cannot be used."""
    return [stat_logger_of(loaded) for loaded in load_group(PluginGroup.STAT_LOGGER)]


def given_stat_loggers(given: Sequence[StatLoggerFactory]) -> list[StatLoggerSource]:
    """Returns sources for a program's loggers, classes or factory functions; raises ValueError for anything else."""
    sources = []
    for index, make in enumerate(given):
        no_logger = isinstance(make, type) and not issubclass(make, StatLoggerBase)
        if no_logger or not callable(make):
            raise ValueError(f"stat_loggers.{index}: must be {WHAT} or a function that makes one, not {make!r}")
        sources.append(StatLoggerSource(getattr(make, "__qualname__", type(make).__name__), make))
    return sources


def stat_logger_of(loaded: LoadedPlugin) -> StatLoggerSource:
    """Returns the logger source of a plugin; raises PluginError for one that cannot be used."""
    found, value = loaded.found, loaded.plugin.value
    if not (isinstance(found, type) and issubclass(found, StatLoggerBase)):
        kind = f"the class {found.__name__}" if isinstance(found, type) else f"a {type(found).__name__}"
        raise PluginError(loaded.plugin, f"{value} is {kind}; the entry point must name {WHAT}")
    if inspect.isabstract(found):
        absent = ", ".join(sorted(found.__abstractmethods__))
        raise PluginError(loaded.plugin, f"{found.__name__} does not define {absent}")
    return StatLoggerSource(loaded.name, found, loaded.plugin)
