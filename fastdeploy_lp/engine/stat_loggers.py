"""The stat loggers of one engine: all of them are told, and one that fails is left out from then on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from fastdeploy_lp.plugins.stat_logger import StatLoggerBase
from fastdeploy_lp.stats import IterationStats, SchedulerStats

logger = logging.getLogger(__name__)


class StatLoggers:
    """Stat loggers by name, told in this order of the worker with this index."""

    def __init__(self, loggers: Iterable[tuple[str, StatLoggerBase]], engine_index: int = 0) -> None:
        self._loggers = list(loggers)
        self._engine_index = engine_index
        self._timer: asyncio.Task[None] | None = None

    @property
    def names(self) -> list[str]:
        """Those that are still told."""
        return [name for name, _ in self._loggers]

    def record(self, scheduler_stats: SchedulerStats | None, iteration_stats: IterationStats | None) -> None:
        """Tell what happened; never raises."""
        self._tell(lambda each: each.record(scheduler_stats, iteration_stats, engine_idx=self._engine_index))

    def log_engine_initialized(self) -> None:
        """Tell that the engine takes requests; never raises."""
        self._tell(lambda each: each.log_engine_initialized())

    def start(self, interval: float) -> None:
        """Have `log` called every `interval` seconds on the running loop; never for 0."""
        if interval and self._timer is None:
            self._timer = asyncio.create_task(self._log_every(interval))

    async def stop(self) -> None:
        """The last call of `log`, unless there was to be none; calling this again does nothing."""
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
            # An author's code may raise anything, and none of it may end the event loop.
            except (Exception, SystemExit):
                logger.exception("stat logger %s failed; it is told nothing from now on", name)
                self._loggers.remove(named)
