"""The stat loggers of one engine, and the built-in one for the log."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.plugins.stat_logger import StatLoggerBase
from fastdeploy_lp.stats import IterationStats, SchedulerStats

report = logging.getLogger("fastdeploy_lp.stats")


class LoggingStatLogger(StatLoggerBase):
    """Logs rates since the last line; idle time is not logged."""

    def __init__(self, fd_config: FDConfig, engine_index: int = 0) -> None:
        self._fd_config = fd_config
        self._engine_index = engine_index
        self._scheduler = SchedulerStats()
        self._begin()

    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats | None,
        engine_idx: int = 0,  # noqa: ARG002 - there is one
    ) -> None:
        """Adds up the events."""
        if scheduler_stats is not None:
            self._scheduler = scheduler_stats
        if iteration_stats is None:
            return
        self._happened = True
        self._prompt_tokens += iteration_stats.num_prompt_tokens
        self._generation_tokens += iteration_stats.num_generation_tokens
        self._finished += len(iteration_stats.finished_requests)

    def log(self) -> None:
        """Logs the line."""
        if not self._happened:
            self._began = time.monotonic()
            return
        seconds, stats = max(time.monotonic() - self._began, 1e-9), self._scheduler
        several = self._fd_config.parallel_config.data_parallel_size > 1
        fields: dict[str, object] = {
            **({"engine": self._engine_index} if several else {}),
            "prompt_tokens_per_s": self._prompt_tokens / seconds,
            "generation_tokens_per_s": self._generation_tokens / seconds,
            "running": stats.num_running_reqs,
            "waiting": stats.num_waiting_reqs,
            "finished": self._finished,
            "kv_cache_usage": stats.kv_cache_usage,
            "prefix_cache_hit_rate": stats.prefix_cache_hit_rate,
            "preemptions": stats.num_preemptions,
            "processor_faults": sum(each.faults for each in stats.processors),
        }
        report.info("engine load", extra={"fields": fields})
        self._begin()

    def log_engine_initialized(self) -> None:
        """Logs the engine's capacity."""
        config = self._fd_config
        fields = {
            "slots": config.scheduler_config.max_num_seqs,
            "kv_cache_blocks": config.cache_config.num_blocks - 1,
            "block_size": config.cache_config.block_size,
            "max_model_len": config.model_config.max_model_len,
        }
        report.info("engine ready", extra={"fields": fields})
        self._begin()

    def _begin(self) -> None:
        self._began = time.monotonic()
        self._prompt_tokens = self._generation_tokens = self._finished = 0
        self._happened = False


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
