"""The contract of stat loggers: who is told what the engine does."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeAlias

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.stats import IterationStats, SchedulerStats


class StatLoggerBase(ABC):
    """Told of every iteration of one engine, in the API process and on its event loop: no method may wait.

    A logger that raises is reported with its traceback and not called again; requests never notice.
    """

    @abstractmethod
    def __init__(self, fd_config: FDConfig, engine_index: int = 0) -> None:
        """Before the model loads, once for each worker; what it raises stops the start. engine_index: the worker's."""

    @abstractmethod
    def record(
        self, scheduler_stats: SchedulerStats | None, iteration_stats: IterationStats | None, engine_idx: int = 0
    ) -> None:
        """Both after each message of the worker; one alone when something happens between two.

        What is given is not to be changed.
        """

    def log(self) -> None:  # noqa: B027 - most have nothing to do
        """Called every `--log-stats-interval` seconds, and once more at the end."""

    @abstractmethod
    def log_engine_initialized(self) -> None:
        """The model is loaded and requests are taken."""


# A class of these, or anything else that makes one of a configuration and the engine's number.
StatLoggerFactory: TypeAlias = Callable[[FDConfig, int], StatLoggerBase]
