"""Statistics of one engine: its events, the state of its logits processors, and the loggers that record them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.engine.client.work import SequenceTimes, Work
from fastdeploy_lp.engine.client.worker_loss import WorkerLoss
from fastdeploy_lp.engine.errors import ProcessorUnavailableError, discreet
from fastdeploy_lp.logits_processor import DeclaredProcessor, ProcessorStats, Selection
from fastdeploy_lp.logits_processor.chain.calls import CallKind
from fastdeploy_lp.logits_processor.quarantine import Quarantine
from fastdeploy_lp.logits_processor.stages import LOGITS, Stage
from fastdeploy_lp.messages import SequenceStep
from fastdeploy_lp.plugins.stat_logger import StatLoggerBase
from fastdeploy_lp.stats import (
    ERROR,
    OK,
    QUARANTINED,
    ArrivedRequestStats,
    FinishedRequestStats,
    IterationStats,
    SchedulerStats,
    ShadowStats,
)

logger = logging.getLogger(__name__)
report = logging.getLogger("fastdeploy_lp.stats")

UPLOADS = "(uploads)"
"""Name in metrics of all uploaded processors together."""


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


@dataclass(frozen=True)
class ProcessorInfo:
    """One declared processor, as listed by `GET /v1/logits_processors` and `LLM.logits_processors`.

    order: its position in the chain, from 0. parameters: JSON Schema of its arguments, None if unknown.
    argmax_invariant: None until the worker has built it. mandatory: no request can leave it out. output: JSON Schema of
    the values that it emits, None if it declares none. stage: when it runs, "logits", "filtered" or "draw".
    """

    name: str
    dialect: str
    source: str
    spec: str
    order: int
    argmax_invariant: bool | None
    parameters: dict[str, Any] | None
    description: str
    stats: ProcessorStats
    mandatory: bool = False
    output: dict[str, Any] | None = None
    stage: Stage = LOGITS


class ProcessorStates:
    """The declared processors in chain order, with the latest counters from the worker."""

    def __init__(self, declared: Sequence[DeclaredProcessor]) -> None:
        self._declared = list(declared)
        self._stats = {processor.name: ProcessorStats(processor.name) for processor in declared}
        self._argmax_invariant: dict[str, bool] = {}

    @property
    def stats(self) -> list[ProcessorStats]:
        """Counters in chain order, then the counters of uploaded processors."""
        return list(self._stats.values())

    @property
    def reported(self) -> list[ProcessorStats]:
        """Counters for metrics and logs, where uploaded processors, which only their owners know, count as one."""
        names = {processor.name for processor in self._declared}
        declared = [each for each in self.stats if each.name in names]
        uploaded = [each for each in self.stats if each.name not in names]
        return [*declared, msgspec.structs.replace(_added_up(uploaded), name=UPLOADS)] if uploaded else declared

    def stats_of(self, name: str) -> ProcessorStats:
        """Returns the counters of a processor; of an uploaded one, since the worker knows it."""
        return next((each for each in self.stats if each.name == name), ProcessorStats(name))

    def update(self, stats: Sequence[ProcessorStats]) -> None:
        """Stores newer counters."""
        names = {processor.name for processor in self._declared}
        kept = {name: each for name, each in self._stats.items() if name in names}
        # The worker reports all uploaded processors that it knows.
        self._stats = kept | {each.name: each for each in stats}

    def restart(self, loss: WorkerLoss) -> None:
        """Resets the counters after a worker's end; the quarantine stays, and the culprits join it."""
        quarantine = Quarantine.of(self.stats)
        self._stats = {processor.name: ProcessorStats(processor.name) for processor in self._declared}
        for culprit in loss.culprits:
            named = quarantine.shadow if culprit.kind is CallKind.SHADOW else quarantine.chain
            named[culprit.name] = f"logits processor {culprit.name} ended the worker: {loss.cause}"
        quarantine.apply_to(self._stats)

    @property
    def quarantine(self) -> Quarantine:
        """The processors that are out of service."""
        return Quarantine.of(self.stats)

    def set_argmax_invariant(self, by_name: dict[str, bool]) -> None:
        """Stores the `argmax_invariant` of each processor that the worker built; some in quarantine are not built."""
        self._argmax_invariant |= by_name

    def describe(self) -> list[ProcessorInfo]:
        """Describes all processors, in chain order."""
        return [
            ProcessorInfo(
                name=processor.name,
                dialect=processor.dialect.name,
                source=processor.source,
                spec=processor.spec,
                order=order,
                argmax_invariant=self._argmax_invariant.get(processor.name),
                parameters=processor.params_model.model_json_schema() if processor.params_model else None,
                description=processor.description,
                stats=self._stats[processor.name],
                mandatory=processor.mandatory,
                stage=processor.stage,
                output=processor.output_model.model_json_schema(mode="serialization")
                if processor.output_model
                else None,
            )
            for order, processor in enumerate(self._declared)
        ]

    def used_by(self, selection: Selection) -> list[str]:
        """Returns the names of the processors that a request uses, mandatory ones included, in chain order.

        Uploaded processors are the first.
        """
        declared = [processor.name for processor in self._declared if processor.is_used_by(selection)]
        return [*selection.brought, *declared]

    def require_in_service(self, selection: Selection) -> None:
        """Raises ProcessorUnavailableError if the request uses a processor that is in quarantine."""
        for name in self.used_by(selection):
            stats = self._stats.get(name)
            if stats is not None and stats.state == QUARANTINED:
                reason = f"is in quarantine until an operator resets it: {stats.last_error}"
                error = ProcessorUnavailableError(f"logits processor {name} {reason}")
                raise discreet(error, selection.secret)

    def reset(self, name: str) -> None:
        """Marks a processor as in service; raises KeyError for a name that is not declared."""
        self._stats[name].state = OK
        self._stats[name].shadow.state = OK


class ProcessorStatesOfAll(ProcessorStates):
    """States of several workers as one: adds up counters; a processor is in quarantine if any worker has it there."""

    def __init__(self, declared: Sequence[DeclaredProcessor], parts: Sequence[ProcessorStates]) -> None:
        super().__init__(declared)
        self._parts = list(parts)

    @property
    def stats(self) -> list[ProcessorStats]:
        """Counters in chain order, then the counters of uploaded processors."""
        by_name: dict[str, list[ProcessorStats]] = {}
        for part in self._parts:
            for each in part.stats:
                by_name.setdefault(each.name, []).append(each)
        return [_added_up(each) for each in by_name.values()]

    def describe(self) -> list[ProcessorInfo]:
        """Describes all processors, in chain order."""
        self.update(self.stats)
        for part in self._parts:
            self._argmax_invariant |= part._argmax_invariant
        return super().describe()


def _added_up(stats: Sequence[ProcessorStats]) -> ProcessorStats:
    shadow = ShadowStats(**_sums([each.shadow for each in stats]))
    return ProcessorStats(name=stats[0].name, shadow=shadow, **_sums(stats))


def _sums(stats: Sequence[ProcessorStats | ShadowStats]) -> dict[str, Any]:
    """Returns the sum of every number, the worst state, and a last error if there is one."""
    numbers = [name for name in stats[0].__struct_fields__ if isinstance(getattr(stats[0], name), (int, float))]
    sums: dict[str, Any] = {name: sum(getattr(each, name) for each in stats) for name in numbers}
    worst = next((each for each in stats if each.state != OK), stats[0])
    error = next((each.last_error for each in (worst, *stats) if each.last_error is not None), None)
    return sums | {"state": worst.state, "last_error": error}


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
