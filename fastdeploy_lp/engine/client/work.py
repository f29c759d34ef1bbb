"""A request in flight, whatever its result is: its sequences in the worker, its times, its caller, and its end."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from fastdeploy_lp.engine.errors import (
    EngineDeadError,
    ProcessorUnavailableError,
    RequestFailedError,
    RequestImpossibleError,
)
from fastdeploy_lp.engine.prepare.input_processor import Prompt
from fastdeploy_lp.engine.request_spans import TRACE_PARENT
from fastdeploy_lp.messages import SequenceStep


class News:
    """Lets one task wait for news; news that arrives before it waits is kept.

    A plain future: asyncio.Event would cost several times as much per token.
    """

    def __init__(self) -> None:
        self._arrived = False
        self._waiter: asyncio.Future[None] | None = None

    def arrive(self) -> None:
        """Wakes the waiting task, or keeps the news for the next wait."""
        self._arrived = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self) -> None:
        """Waits for news since the last call."""
        if not self._arrived:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        self._arrived = False


@dataclass(slots=True)
class SequenceTimes:
    """Timestamps in seconds; None before the event.

    `scheduled` is the time of the sequence's first slot, as the worker reports it. The vector of a pooled prompt counts
    as its last token; it has no first one.
    """

    arrival: float
    scheduled: float | None = None
    first_token: float | None = None
    last_token: float | None = None

    def begin(self) -> None:
        """Clears all timestamps except the arrival."""
        self.scheduled = self.first_token = self.last_token = None

    @property
    def time_to_first_token(self) -> float | None:
        """Seconds from arrival to the first token."""
        return _between(self.arrival, self.first_token)

    @property
    def queue(self) -> float | None:
        """Seconds from arrival to a slot."""
        return _between(self.arrival, self.scheduled)

    @property
    def prefill(self) -> float | None:
        """Seconds from a slot to the first token."""
        return _between(self.scheduled, self.first_token)

    @property
    def decode(self) -> float | None:
        """Seconds from the first token to the last one so far."""
        return _between(self.first_token, self.last_token)

    @property
    def inference(self) -> float | None:
        """Seconds from a slot to the last token so far."""
        return _between(self.scheduled, self.last_token)

    def time_per_output_token(self, num_tokens: int) -> float | None:
        """Returns the mean seconds between `num_tokens` tokens; None for fewer than two."""
        decode = self.decode
        return None if decode is None or num_tokens < 2 else decode / (num_tokens - 1)


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else end - start


class SequenceResult(Protocol):
    """The result of one sequence so far."""

    num_cached_tokens: int

    @property
    def num_tokens(self) -> int:
        """Tokens generated so far."""

    @property
    def finish_reason(self) -> str | None:
        """The finish reason, None while the sequence runs."""


class Work(ABC):
    """One request in flight, whose result one caller reads.

    `serial` is unique among requests of one engine, `times` has one entry per sequence, `processors` names the logits
    processors that the request uses, and `max_tokens` is the limit of each sequence, None for a pooled prompt.
    `traceparent` names the caller's span, if it has one. `lost_workers` counts workers that ended while the request may
    have run.
    """

    def __init__(
        self,
        request_id: str,
        prompt: Prompt,
        num_sequences: int,
        on_close: Callable[[Work], None],
        processors: Sequence[str] = (),
        max_tokens: int | None = None,
    ) -> None:
        self.request_id = request_id
        self.serial = 0
        self.prompt = prompt
        arrival = time.monotonic()
        self.times = [SequenceTimes(arrival) for _ in range(num_sequences)]
        self.processors = list(processors)
        self.traceparent = TRACE_PARENT.get()
        self.max_tokens = max_tokens
        self.lost_workers = 0
        self._on_close = on_close
        self._error: EngineDeadError | RequestFailedError | None = None
        self._deadline: asyncio.TimerHandle | None = None

    @property
    @abstractmethod
    def sequences(self) -> Sequence[SequenceResult]:
        """The result of each sequence, one for each of `times`."""

    @property
    def finished(self) -> bool:
        """True once every sequence has ended."""
        return None not in self.finish_reasons

    @property
    def finish_reasons(self) -> list[str | None]:
        """The finish reason of each sequence, None while it runs."""
        return [each.finish_reason for each in self.sequences]

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated by all sequences so far."""
        return sum(each.num_tokens for each in self.sequences)

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens that the first sequence, which runs first, found in the prefix cache."""
        return self.sequences[0].num_cached_tokens

    @property
    def error(self) -> EngineDeadError | RequestFailedError | None:
        """The error that ended the request, or None."""
        return self._error

    def sequence_id(self, index: int) -> str:
        """Returns the worker's name of a sequence, unique to this request.

        Clients choose request ids and may reuse one while the worker still reports on the previous request with it.
        """
        return f"{self.request_id}-{index}-{self.serial}"

    @property
    def sequence_ids(self) -> list[str]:
        """The worker's names of all sequences."""
        return [self.sequence_id(index) for index in range(len(self.times))]

    @abstractmethod
    def take(self, index: int, step: SequenceStep) -> None:
        """Adds the result of a step to a sequence; any exception concerns this request only."""

    @abstractmethod
    def notify(self) -> None:
        """Wakes the caller, if there is something to read, after `take`."""

    @abstractmethod
    def fail(self, error: EngineDeadError | RequestFailedError) -> None:
        """Ends the request with an error."""

    @abstractmethod
    def abort(self) -> None:
        """Ends the request at the caller's wish."""

    @abstractmethod
    def begin_again(self) -> None:
        """Resets the running sequences to their beginning: another worker computes them again."""

    def close(self) -> None:
        """Aborts what still runs: the caller has stopped reading."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._on_close(self)

    def ends_at(self, deadline: asyncio.TimerHandle) -> None:
        """Stores the timer that ends the request at its deadline; `close` cancels it."""
        self._deadline = deadline


def failure_of(step: SequenceStep) -> RequestFailedError:
    """Returns the error of the kind that the step reports."""
    kind: type[RequestFailedError] = RequestFailedError
    if step.unavailable:
        kind = ProcessorUnavailableError
    elif step.by_request:
        kind = RequestImpossibleError
    return kind(step.error or "the worker ended the sequence")
