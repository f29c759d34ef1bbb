"""Statistics of one engine: its events, and the loggers that record them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.engine.client.processor_states import ProcessorStates
from fastdeploy_lp.engine.client.work import SequenceTimes, Work
from fastdeploy_lp.messages import SequenceStep
from fastdeploy_lp.plugins.stat_logger import StatLoggerBase
from fastdeploy_lp.stats import (
    ERROR,
    ArrivedRequestStats,
    FinishedRequestStats,
    IterationStats,
    SchedulerStats,
)

logger = logging.getLogger(__name__)
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


class EngineStats:
    """Statistics of one engine: recorded per worker message, and per event between two messages."""

    def __init__(self, processors: ProcessorStates, loggers: StatLoggers) -> None:
        self.loggers = loggers
        self._processors = processors
        self._last = SchedulerStats(processors=processors.reported)
        # Exporters have all values from the start.
        loggers.record(self._last, None)

    def step(self, scheduler: SchedulerStats, iteration: IterationStats) -> None:
        """Records a message of the worker: its counters, which lack the processors, and the message's statistics."""
        before, now = self._last.num_preemptions, scheduler.num_preemptions
        self._last = replace(scheduler, processors=self._processors.reported)
        # A restarted worker counts from zero.
        iteration.num_preempted_reqs = now - (before if before <= now else 0)
        self.loggers.record(self._last, iteration)

    def arrived(self, prompt_tokens: int, n: int = 1, max_tokens: int | None = None) -> None:
        """Records a new request."""
        request = ArrivedRequestStats(prompt_tokens, n, max_tokens)
        self.loggers.record(None, IterationStats(time.monotonic(), arrived_requests=[request]))

    def finished(self, requests: Sequence[FinishedRequestStats]) -> None:
        """Records sequences that ended between two messages."""
        if requests:
            self.loggers.record(None, IterationStats(time.monotonic(), finished_requests=list(requests)))

    def died(self, requests: Sequence[FinishedRequestStats], num_waiting: int) -> None:
        """Records the loss of the worker and of its sequences; `num_waiting` others wait for the next worker."""
        # The next worker's counters start at zero; these do too, in case there is no next worker.
        self._last = SchedulerStats(
            num_waiting_reqs=num_waiting,
            kv_cache_blocks_total=self._last.kv_cache_blocks_total,
            processors=self._processors.reported,
        )
        self.loggers.record(self._last, None)
        self.finished(requests)


def step_came(step: SequenceStep, times: SequenceTimes, iteration: IterationStats) -> None:
    """Records the time of a sequence's step, which is the time of its message; a pooled prompt's step has no token."""
    now = iteration.iteration_timestamp
    if times.last_token is not None:
        # The step of a processor's finish has no token either.
        iteration.inter_token_latencies_iter += [now - times.last_token] * bool(step.token_ids)
    elif step.token_ids:
        times.first_token = now
        iteration.time_to_first_tokens_iter.append(now - times.arrival)
    times.last_token = now


def sequence_stats(work: Work, index: int, finish_reason: str | None = None) -> FinishedRequestStats:
    """Returns the statistics of an ended sequence; `finish_reason` overrides the sequence's reason."""
    times, sequence = work.times[index], work.sequences[index]
    return FinishedRequestStats(
        request_id=work.request_id,
        index=index,
        finish_reason=finish_reason or sequence.finish_reason or ERROR,
        num_prompt_tokens=len(work.prompt.token_ids),
        num_generation_tokens=sequence.num_tokens,
        num_cached_tokens=sequence.num_cached_tokens,
        max_tokens_param=work.max_tokens,
        time_to_first_token=times.time_to_first_token,
        e2e_latency=None if times.last_token is None else times.last_token - times.arrival,
        queued_time=times.queue,
        prefill_time=times.prefill,
        decode_time=times.decode,
        inference_time=times.inference,
        mean_time_per_output_token=times.time_per_output_token(sequence.num_tokens),
        processors=tuple(work.processors),
        arrival=times.arrival,
        traceparent=work.traceparent,
    )
