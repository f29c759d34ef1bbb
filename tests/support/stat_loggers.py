"""Stat loggers for tests."""

from __future__ import annotations

from fastdeploy_lp import FDConfig, StatLoggerBase
from fastdeploy_lp.stats import ArrivedRequestStats, FinishedRequestStats, IterationStats, SchedulerStats


class Keeps(StatLoggerBase):
    """Keeps everything it is told."""

    def __init__(self, fd_config: FDConfig, engine_index: int = 0) -> None:
        self.fd_config = fd_config
        self.engine_index = engine_index
        self.told: list[str] = []
        self.scheduler: list[SchedulerStats] = []
        self.iterations: list[IterationStats] = []

    def record(
        self, scheduler_stats: SchedulerStats | None, iteration_stats: IterationStats | None, engine_idx: int = 0
    ) -> None:
        self.told.append("record")
        if scheduler_stats is not None:
            self.scheduler.append(scheduler_stats)
        if iteration_stats is not None:
            self.iterations.append(iteration_stats)

    def log(self) -> None:
        self.told.append("log")

    def log_engine_initialized(self) -> None:
        self.told.append("initialized")

    @property
    def arrived(self) -> list[ArrivedRequestStats]:
        """All requests that were taken in."""
        return [each for iteration in self.iterations for each in iteration.arrived_requests]

    @property
    def finished(self) -> list[FinishedRequestStats]:
        """All completions that are over."""
        return [each for iteration in self.iterations for each in iteration.finished_requests]
