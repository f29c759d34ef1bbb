"""From what happens in the engine to what its stat loggers are told."""

from __future__ import annotations

import time
from collections.abc import Sequence

from fastdeploy_lp.engine.completion import Completion
from fastdeploy_lp.engine.generation import Generation
from fastdeploy_lp.engine.pooling import Pooling
from fastdeploy_lp.engine.processor_states import ProcessorStates
from fastdeploy_lp.engine.sequence_times import SequenceTimes
from fastdeploy_lp.engine.stat_loggers import StatLoggers
from fastdeploy_lp.messages import StepOutputs
from fastdeploy_lp.stats import (
    ERROR,
    ArrivedRequestStats,
    FinishedRequestStats,
    IterationStats,
    SchedulerStats,
)


class EngineStats:
    """What one engine tells its loggers: once a message of the worker, and once for each event between two."""

    def __init__(self, processors: ProcessorStates, loggers: StatLoggers) -> None:
        self.loggers = loggers
        self._processors = processors
        self._last = SchedulerStats(processors=processors.stats)
        # Whoever exports numbers has all of them from the first moment on.
        loggers.record(self._last, None)

    def step(self, outputs: StepOutputs, iteration: IterationStats) -> None:
        """A message of the worker has been taken in, which gave `iteration`."""
        cache, before = outputs.cache, self._last.num_preemptions
        self._last = SchedulerStats(
            num_running_reqs=outputs.num_running,
            num_waiting_reqs=outputs.num_waiting,
            kv_cache_blocks_used=cache.blocks_used,
            kv_cache_blocks_total=cache.blocks_total,
            prefix_cache_queries=cache.prefix_queries,
            prefix_cache_hits=cache.prefix_hits,
            num_preemptions=cache.preemptions,
            step_time=outputs.step_time,
            processors=self._processors.stats,
        )
        # A worker that was started anew counts from nothing.
        iteration.num_preempted_reqs = cache.preemptions - (before if before <= cache.preemptions else 0)
        self.loggers.record(self._last, iteration)

    def arrived(self, prompt_tokens: int, n: int = 1, max_tokens: int | None = None) -> None:
        """A request was taken in."""
        request = ArrivedRequestStats(prompt_tokens, n, max_tokens)
        self.loggers.record(None, IterationStats(time.monotonic(), arrived_requests=[request]))

    def finished(self, requests: Sequence[FinishedRequestStats]) -> None:
        """Sequences ended between two messages."""
        if requests:
            self.loggers.record(None, IterationStats(time.monotonic(), finished_requests=list(requests)))

    def died(self, requests: Sequence[FinishedRequestStats], num_waiting: int) -> None:
        """The worker is gone, and these ended with it; so many others wait for the next one."""
        # What its successor tells of counts from nothing, and so does this, in case there is none.
        self._last = SchedulerStats(
            num_waiting_reqs=num_waiting,
            kv_cache_blocks_total=self._last.kv_cache_blocks_total,
            processors=self._processors.stats,
        )
        self.loggers.record(self._last, None)
        self.finished(requests)


def token_came(times: SequenceTimes, iteration: IterationStats) -> None:
    """Write down the moment of a sequence's newest token, which is that of the message it came with."""
    now = iteration.iteration_timestamp
    if times.last_token is None:
        times.first_token = now
        iteration.time_to_first_tokens_iter.append(now - times.arrival)
    else:
        iteration.inter_token_latencies_iter.append(now - times.last_token)
    times.last_token = now


def completion_stats(
    generation: Generation, completion: Completion, finish_reason: str | None = None
) -> FinishedRequestStats:
    """Of a completion that is over, for the reason that it has itself unless one is given."""
    times, num_tokens = generation.times[completion.index], completion.num_tokens
    return FinishedRequestStats(
        request_id=generation.request_id,
        index=completion.index,
        finish_reason=finish_reason or completion.finish_reason or ERROR,
        num_prompt_tokens=len(generation.prompt.token_ids),
        num_generation_tokens=num_tokens,
        num_cached_tokens=completion.num_cached_tokens,
        max_tokens_param=generation.max_tokens,
        time_to_first_token=times.time_to_first_token,
        e2e_latency=None if times.last_token is None else times.last_token - times.arrival,
        queued_time=times.queue,
        prefill_time=times.prefill,
        decode_time=times.decode,
        inference_time=times.inference,
        mean_time_per_output_token=times.time_per_output_token(num_tokens),
        processors=tuple(generation.processors),
    )


def pooling_stats(pooling: Pooling, finish_reason: str, now: float | None = None) -> FinishedRequestStats:
    """Of a prompt that is over; `now`: when its vector came, None if there is none."""
    (times,) = pooling.times
    return FinishedRequestStats(
        request_id=pooling.request_id,
        index=0,
        finish_reason=finish_reason,
        num_prompt_tokens=len(pooling.prompt.token_ids),
        num_generation_tokens=0,
        num_cached_tokens=pooling.num_cached_tokens,
        e2e_latency=now - times.arrival if now is not None else None,
        queued_time=times.queue,
        inference_time=now - times.scheduled if now is not None and times.scheduled is not None else None,
    )
