"""The requests of one engine, from their admission to their end, and the pace at which many of them begin."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeVar

from fastdeploy_lp.config import SchedulerConfig
from fastdeploy_lp.engine.client.admission import Admission, WaitingRoom, make_outbox
from fastdeploy_lp.engine.client.engine import EngineLoad
from fastdeploy_lp.engine.client.engine_stats import EngineStats, sequence_stats, step_came
from fastdeploy_lp.engine.client.generation import Generation, ReplayError, completions_of
from fastdeploy_lp.engine.client.pooling import Pooling
from fastdeploy_lp.engine.client.processor_states import ProcessorStates
from fastdeploy_lp.engine.client.request_log import RequestLog
from fastdeploy_lp.engine.client.work import SequenceResult, SequenceTimes, Work, failure_of
from fastdeploy_lp.engine.client.worker_loss import WorkerLoss, ended_by
from fastdeploy_lp.engine.errors import (
    EngineDeadError,
    QueueFullError,
    RequestFailedError,
    RequestTimeoutError,
    WorkerLostError,
)
from fastdeploy_lp.engine.metrics import ReliabilityMetrics
from fastdeploy_lp.engine.prepare.input_processor import EngineRequest
from fastdeploy_lp.engine.prepare.preparation import RequestPreparation
from fastdeploy_lp.messages import AbortRequests, AddRequest, SequenceStep, StepOutputs, ToWorker
from fastdeploy_lp.stats import ABORT, ERROR, FinishedRequestStats, IterationStats

logger = logging.getLogger(__name__)
# Seconds of work before yielding to other tasks.
PIECE = 0.004
Begun = TypeVar("Begun", Generation, Pooling)


class SequenceInFlight(NamedTuple):
    """The sequence at this place of a request, with its times and its result."""

    work: Work
    place: int
    times: SequenceTimes
    result: SequenceResult


class SequenceIndex:
    """The sequences in flight by their worker ids: one per completion of a request, or one for a pooled prompt."""

    def __init__(self) -> None:
        self._sequences: dict[str, SequenceInFlight] = {}

    def __len__(self) -> int:
        return len(self._sequences)

    def __contains__(self, sequence_id: str) -> bool:
        return sequence_id in self._sequences

    @property
    def works(self) -> list[Work]:
        """All requests, each once."""
        return self.works_of(self._sequences)

    def works_of(self, sequence_ids: Iterable[str]) -> list[Work]:
        """Returns the requests of these sequences, each once; raises KeyError for one that is not in flight."""
        return list({(work := self._sequences[name].work).serial: work for name in sequence_ids}.values())

    def add(self, work: Work) -> None:
        """Adds all sequences of a request."""
        each = zip(work.sequence_ids, work.times, work.sequences, strict=True)
        self._sequences |= {
            name: SequenceInFlight(work, index, times, result) for index, (name, times, result) in enumerate(each)
        }

    def find(self, sequence_id: str) -> SequenceInFlight | None:
        """Returns a sequence; None for any other id."""
        return self._sequences.get(sequence_id)

    def remove(self, sequence_id: str) -> None:
        """Removes a sequence that has ended."""
        self._sequences.pop(sequence_id, None)

    def remove_work(self, work: Work) -> dict[str, int]:
        """Removes a request's sequences that have not ended, and returns their indices by id."""
        names = {name: index for index, name in enumerate(work.sequence_ids)}
        return {name: index for name, index in names.items() if self._sequences.pop(name, None) is not None}


class Pace:
    """Splits one caller's work: `rest` yields to the event loop's other tasks after each piece."""

    def __init__(self) -> None:
        self._began = time.perf_counter()

    async def rest(self) -> None:
        """Yields to other tasks if the piece is over; otherwise returns at once."""
        if time.perf_counter() - self._began > PIECE:
            await asyncio.sleep(0)
            self._began = time.perf_counter()


class EngineRequests:
    """Admits requests, sends their sequences to the worker, and reads its steps, until each request ends.

    send: sends a message to the current worker. fair: clients take turns. `request_log` is set by the caller that wants
    requests recorded.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        preparation: RequestPreparation,
        processors: ProcessorStates,
        stats: EngineStats,
        reliability: ReliabilityMetrics,
        send: Callable[[ToWorker], None],
        *,
        fair: bool,
    ) -> None:
        self.admission = Admission()
        self.request_log: RequestLog | None = None
        self._config = config
        self._preparation = preparation
        self._processors = processors
        self._stats = stats
        self._reliability = reliability
        self._send = send
        self._fair = fair
        self._num_running = 0
        self._outbox = make_outbox(send, config, fair=fair)
        self._room = WaitingRoom(config, self._outbox, fair=fair)
        self._sequences = SequenceIndex()

    def __len__(self) -> int:
        """Returns the number of sequences in the worker or waiting for it."""
        return len(self._sequences)

    @property
    def load(self) -> EngineLoad:
        """Sequences that the worker reported as running, and all others in flight, which wait for it."""
        running = self._num_running if self.has_worker else 0
        return EngineLoad(running, max(len(self) - running, 0))

    @property
    def has_worker(self) -> bool:
        """True if a worker accepts sequences."""
        return self._outbox.is_open

    def require_room(self, count: int, client: str) -> None:
        """Raises as `Admission.require_open` does, and QueueFullError unless `count` more sequences fit."""
        self.admission.require_open()
        try:
            self._room.require(count, client, len(self))
        except QueueFullError:
            self._reliability.refused.inc()
            raise

    async def generate(self, requests: Sequence[EngineRequest], *, stream: bool, bounded: bool) -> list[Generation]:
        """Begins requests for text; see `EngineClient.generate`."""
        return await self._begin(requests, partial(self._generation, stream=stream), bounded=bounded)

    async def pool(self, requests: Sequence[EngineRequest], *, bounded: bool) -> list[Pooling]:
        """Begins prompts to pool; see `EngineClient.pool`."""
        return await self._begin(requests, self._pooling, bounded=bounded)

    def connect(self) -> int:
        """Sends a new worker the previous worker's sequences and newer ones; returns how many it gets again."""
        again = len(self._outbox.sent)
        self._num_running = 0
        self._outbox.open()
        return again

    def disconnect(self) -> None:
        """Stops sending: the worker is gone."""
        self._outbox.close()

    def begin_again(self, loss: WorkerLoss) -> None:
        """Resets the requests of a lost worker for the next one; ends requests that may have caused the loss."""
        ended: list[FinishedRequestStats] = []
        for work, error in ended_by(loss, self._sequences.works, self._may_have_run()):
            ended += self._forget(work, ERROR)
            self._reliability.lost.inc()
            work.fail(error)
        for work in self._sequences.works:
            work.begin_again()
        self._stats.died(ended, len(self))

    def end(self, reason: str) -> None:
        """Ends every request with EngineDeadError, and accepts no more."""
        if self.admission.dead is not None:
            return
        self._outbox.close()
        running = self._sequences.works
        self.admission.end(reason)
        self._stats.died([each for work in running for each in self._forget(work, ERROR)], num_waiting=0)
        for work in running:
            work.fail(EngineDeadError(reason))

    async def drain(self) -> None:
        """Stops accepting requests and waits until all have ended."""
        self.admission.drain(quiet=not len(self))
        await self.admission.wait_quiet()

    def take(self, outputs: StepOutputs) -> None:
        """Reads a step of the worker."""
        stats = outputs.scheduler_stats
        num_waiting = stats.num_waiting_reqs + self._outbox.num_waiting
        self._num_running = stats.num_running_reqs
        if outputs.processors is not None:
            self._processors.update(outputs.processors)
        if self._fair:
            self._outbox.charge(outputs.steps)
        iteration = IterationStats(time.monotonic(), sum(len(step.token_ids) for step in outputs.steps))
        told: dict[Work, None] = {}
        for step in outputs.steps:
            found = self._sequences.find(step.request_id)
            if found is None:
                continue
            if self._take_step(step, found, iteration):
                told[found.work] = None
            else:
                told.pop(found.work, None)
        self._stats.step(replace(stats, num_waiting_reqs=num_waiting), iteration)
        # Once for all sequences of a request; streams write their events in this pass.
        for work in told:
            work.notify()

    async def _begin(
        self, requests: Sequence[EngineRequest], make: Callable[[EngineRequest], Begun], *, bounded: bool
    ) -> list[Begun]:
        """Accepts all of the requests or none, and yields to the event loop between pieces."""
        self.admission.require_open()
        # Prompts of one request body share one selection.
        sampled = {id(each.settled.selection): each.settled.sampled_with for each in requests}
        for selection in sampled.values():
            if selection is not None:
                self._processors.require_in_service(selection)
        count = sum(each.num_sequences for each in requests)
        if bounded and requests:
            self.require_room(count, requests[0].client)
        pace, begun = Pace(), list[Begun]()
        with self._room.entry(count) as entry:
            # Build all of them before sending the first, so that a failure to build one leaves nothing to undo.
            for request in requests:
                begun.append(make(request))
                await pace.rest()
            try:
                for request, work in zip(requests, begun, strict=True):
                    self.admission.require_not_dead()
                    entry.count -= request.num_sequences
                    await self._start(request, work, pace)
                    await pace.rest()
            except BaseException:
                for work in begun:
                    work.close()
                raise
        return begun

    def _generation(self, request: EngineRequest, *, stream: bool) -> Generation:
        params = request.settled.params
        generation = Generation(
            request.request_id,
            request.prompt,
            completions_of(
                params,
                self._preparation.tokenizer,
                request.settled.selection.secret,
                stream_interval=self._config.stream_interval,
            ),
            stream=stream,
            on_close=self._close,
            processors=self._processors.used_by(request.settled.selection),
            max_tokens=params.max_tokens,
            secret=request.settled.selection.secret,
        )
        generation.serial = next(self._preparation.serials)
        return generation

    def _pooling(self, request: EngineRequest) -> Pooling:
        pooling = Pooling(request, on_close=self._close)
        pooling.serial = next(self._preparation.serials)
        return pooling

    async def _start(self, request: EngineRequest, work: Work, pace: Pace) -> None:
        settled = request.settled
        if request.deadline is not None:
            seconds = max(request.deadline - time.monotonic(), 0.0)
            work.ends_at(asyncio.get_running_loop().call_later(seconds, self._expire, work))
        self._sequences.add(work)
        self._stats.arrived(len(request.prompt.token_ids), request.num_sequences, work.max_tokens)
        if self.request_log is not None and isinstance(work, Generation):
            self.request_log.began(work, settled.params)
        for index, name in enumerate(work.sequence_ids):
            await pace.rest()
            # It may have ended meanwhile.
            if name in self._sequences:
                message = AddRequest(
                    name,
                    request.prompt.token_ids,
                    self._preparation.inputs.sequence_params(settled, index),
                    settled.selection,
                    None if settled.grammar is None else settled.grammar.text,
                    request.client,
                    settled.pooling,
                    None if settled.grammar is None else settled.grammar.phase,
                )
                self._outbox.add(message, request.client)

    def _take_step(self, step: SequenceStep, found: SequenceInFlight, iteration: IterationStats) -> bool:
        """Adds a step to a sequence; returns False if it ended the request with an error, which its caller knows."""
        work, index, times, sequence = found
        if step.error is not None:
            iteration.finished_requests += self._forget(work, ERROR)
            work.fail(failure_of(step))
            return False
        if times.last_token is None:
            times.scheduled = step.scheduled_at
            sequence.num_cached_tokens = step.num_cached_tokens or 0
        step_came(step, times, iteration)
        try:
            work.take(index, step)
        except Exception as error:  # noqa: BLE001 - what a tokenizer makes of one request's tokens concerns no other
            iteration.finished_requests += self._forget(work, ERROR)
            work.fail(self._unread(error, work))
            return False
        if sequence.finish_reason is not None:
            iteration.finished_requests.append(sequence_stats(work, index))
            self._sequences.remove(step.request_id)
            # The worker knows no stop strings: abort there.
            self._left([step.request_id], running=step.finish_reason is None)
        return True

    def _unread(self, error: Exception, work: Work) -> RequestFailedError:
        if isinstance(error, ReplayError):
            self._reliability.lost.inc()
            return WorkerLostError(str(error))
        logger.error("the output of request %r cannot be read", work.request_id, exc_info=error)
        return RequestFailedError(f"the output cannot be read: {type(error).__name__}: {error}")

    def _may_have_run(self) -> list[Work]:
        """Requests possibly running: the oldest `max_num_seqs` sequences, since admission is FIFO."""
        return self._sequences.works_of(self._outbox.sent[: self._config.max_num_seqs])

    def _expire(self, work: Work) -> None:
        if ended := self._forget(work, ABORT):
            self._stats.finished(ended)
            self._reliability.timeouts.inc()
            work.fail(RequestTimeoutError("timeout: the time of the request is over, and its answer is not complete"))

    def _close(self, work: Work) -> None:
        """Aborts what still runs: the caller has stopped reading."""
        if self.request_log is not None and isinstance(work, Generation):
            self.request_log.ended(work)
        self._stats.finished(self._forget(work, ABORT))

    def _forget(self, work: Work, reason: str) -> list[FinishedRequestStats]:
        """Drops a request's running sequences, here and in the worker; returns their statistics."""
        running = self._sequences.remove_work(work)
        if running:
            self._left(list(running), running=True)
        return [sequence_stats(work, index, reason) for index in running.values()]

    def _left(self, sequence_ids: list[str], *, running: bool) -> None:
        known = self._outbox.remove(sequence_ids)
        if running and known:
            self._send(AbortRequests(known))
        self._room.left(len(sequence_ids))
        if not len(self):
            self.admission.note_quiet()
