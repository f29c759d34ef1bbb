"""The stat loggers of one engine; a logger that fails is removed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from fastdeploy_lp.plugins.stat_logger import StatLoggerBase
from fastdeploy_lp.stats import IterationStats, SchedulerStats

logger = logging.getLogger(__name__)


class StatLoggers:
    """Stat loggers by name, called in this order with the worker's index."""

    def __init__(self, loggers: Iterable[tuple[str, StatLoggerBase]], engine_index: int = 0) -> None:
        self._loggers = list(loggers)
        self._engine_index = engine_index
        self._timer: asyncio.Task[None] | None = None

    @property
    def names(self) -> list[str]:
        """Names of the active loggers."""
        return [name for name, _ in self._loggers]

    def record(self, scheduler_stats: SchedulerStats | None, iteration_stats: IterationStats | None) -> None:
        """Records statistics; never raises."""
        self._tell(lambda each: each.record(scheduler_stats, iteration_stats, engine_idx=self._engine_index))

    def log_engine_initialized(self) -> None:
        """Reports that the engine accepts requests; never raises."""
        self._tell(lambda each: each.log_engine_initialized())

    def start(self, interval: float) -> None:
        """Calls `log` every `interval` seconds on the running loop; never for 0."""
        if interval and self._timer is None:
            self._timer = asyncio.create_task(self._log_every(interval))

    async def stop(self) -> None:
        """Stops the timer and calls `log` a last time; does nothing without a timer."""
        if self._timer is None:
            return
        timer, self._timer = self._timer, None
        timer.cancel()
        await asyncio.gather(timer, return_exceptions=True)
        self._log()

    async def _log_every(self, interval: float) -> None:
        while True:
            await asyncio.sleep(interval)
            self._log()

    def _log(self) -> None:
        self._tell(lambda each: each.log())

    def _tell(self, call: Callable[[StatLoggerBase], None]) -> None:
        for named in tuple(self._loggers):
            name, each = named
            try:
                call(each)
            # An author's code may raise anything; it must not end the event loop.
            except (Exception, SystemExit):
                logger.exception("stat logger %s failed; it is told nothing from now on", name)
                self._loggers.remove(named)
