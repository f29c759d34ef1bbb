"""The contract of stat loggers, which receive the engine's statistics."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeAlias

from fastdeploy_lp.config import FDConfig
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
