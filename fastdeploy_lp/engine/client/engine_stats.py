"""Turns engine events into the statistics that stat loggers record."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from fastdeploy_lp.engine.client.processor_states import ProcessorStates
from fastdeploy_lp.engine.client.work import SequenceTimes, Work
from fastdeploy_lp.engine.stat_loggers import StatLoggers
from fastdeploy_lp.messages import SequenceStep
from fastdeploy_lp.stats import (
    ERROR,
    ArrivedRequestStats,
    FinishedRequestStats,
    IterationStats,
    SchedulerStats,
)


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
