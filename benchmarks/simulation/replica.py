"""One replica: the worker's scheduler and blocks, with a clock where the model is."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import repeat

from fastdeploy_lp.config import SchedulerConfig
from fastdeploy_lp.logits_processor import Selection
from fastdeploy_lp.messages import AddRequest
from fastdeploy_lp.request.sampling_params import SettledParams
from fastdeploy_lp.worker.block_manager import BlockManager
from fastdeploy_lp.worker.drafters.drafter import Draft
from fastdeploy_lp.worker.scheduled import ScheduledChunk
from fastdeploy_lp.worker.scheduler import Scheduler
from fastdeploy_lp.worker.sequence import Sequence
from simulation.costs import Costs, StepShape
from simulation.trace import Arrival

GREEDY = Selection()


@dataclass(frozen=True)
class ReplicaConfig:
    """The options of a server that matter here, named as it names them."""

    max_num_seqs: int = 32
    max_num_batched_tokens: int = 512
    max_model_len: int = 2048
    block_size: int = 16
    num_blocks: int = 1 + 32 * 128
    enable_prefix_caching: bool = True


@dataclass(slots=True)
class Served:
    """Result of a request; times in seconds, `first` and `ended` as its client sees them."""

    arrival: Arrival
    sequence: Sequence
    replica: int = 0
    queued: float = 0.0
    scheduled: float | None = None
    first: float | None = None
    last: float = 0.0
    ended: float | None = None

    @property
    def ttft(self) -> float:
        """Seconds to the first token; raises ValueError before it."""
        if self.first is None:
            raise ValueError("first: no token yet")
        return self.first - self.arrival.time

    @property
    def tpot(self) -> float | None:
        """Seconds a token after the first, None for a single one; raises ValueError before the end."""
        if self.first is None or self.ended is None:
            raise ValueError("ended: not yet")
        more = self.arrival.output_tokens - 1
        return (self.ended - self.first) / more if more else None


class NobodyInSlots:
    """Stands where the model runner is."""

    computes_ahead = False

    def enter(self, sequence: Sequence) -> None: ...

    def leave(self, slot: int) -> None: ...

    def holds(self, slot: int) -> bool:  # noqa: ARG002
        return False

    def drafts(self, sequences: Iterable[Sequence], tokens: int, room: int) -> Mapping[int, Draft]:  # noqa: ARG002
        return {}


@dataclass
class Stretch:
    """Steps with the same rows: `count` of them, of which the first takes `first` seconds and each later one `more`
    seconds longer than the one before, since the rows' contexts grow."""

    began: float
    chunks: list[ScheduledChunk]
    count: int
    first: float
    more: float

    def end_of(self, count: int) -> float:
        """When that many steps are done."""
        return self.began + count * self.first + self.more * count * (count - 1) / 2

    @property
    def ends(self) -> float:
        """When all of them are done."""
        return self.end_of(self.count)

    def cut(self, time: float) -> None:
        """End with the step that runs at `time`, or has just ended."""
        after = time - self.began
        if self.more > 0:
            half = self.first - self.more / 2
            steps = (math.sqrt(half * half + 2 * self.more * after) - half) / self.more
        else:
            steps = after / self.first
        count = max(1, math.floor(steps))
        # Rounding may put the estimate on either side of a boundary.
        while count > 1 and self.end_of(count - 1) >= time:
            count -= 1
        while count < self.count and self.end_of(count) < time:
            count += 1
        self.count = min(self.count, count)


@dataclass
class Gaps:
    """Times between tokens, counted in bins of one per cent."""

    counts: dict[int, int] = field(default_factory=dict)

    def add(self, seconds: float, count: int) -> None:
        """So many gaps of that length."""
        key = round(math.log(seconds) * 100)
        self.counts[key] = self.counts.get(key, 0) + count


class Replica:
    """Takes requests and runs steps; the caller advances the time.

    `take` adds a request, `ends` is the end time of the current stretch of steps, when the caller calls `finish`. With
    `skip_ahead`, steps that cannot differ from the first (all rows generate, none ends, no request can be admitted, and
    the blocks suffice) are one stretch, which an arrival cuts short. `schedule` records each step's chunks if it is a
    list.
    """

    def __init__(
        self, config: ReplicaConfig, costs: Costs, index: int = 0, *, skip_ahead: bool = True, note: bool = False
    ) -> None:
        self.config, self.index = config, index
        self._costs, self._skip_ahead = costs, skip_ahead
        self._blocks = BlockManager(
            config.num_blocks,
            config.block_size,
            prefix_caching=config.enable_prefix_caching,
            copy_block=_copy_nothing,
        )
        self._scheduler = Scheduler(
            SchedulerConfig(config.max_num_seqs, config.max_num_batched_tokens), self._blocks, NobodyInSlots()
        )
        self._served: dict[str, Served] = {}
        self._stretch: Stretch | None = None
        self._inbox: deque[Served] = deque()
        self.schedule: list[list[tuple[int, int, int]]] | None = [] if note else None
        self.gaps = Gaps()
        self.busy = self.waiting_seconds = 0.0
        self.steps = self.stretches = self.most_waiting = 0

    @property
    def ends(self) -> float | None:
        """When the current stretch ends; None while there is nothing to compute."""
        return None if self._stretch is None else self._stretch.ends

    @property
    def num_preemptions(self) -> int:
        """Sequences that had to go back to the queue."""
        return self._scheduler.num_preemptions

    @property
    def cache_hits(self) -> tuple[int, int]:
        """Tokens of prompts found in the cache, and those looked for."""
        return self._blocks.num_hit_tokens, self._blocks.num_queried_tokens

    def take(self, arrival: Arrival, now: float) -> None:
        """A request has come to the worker; raises ValueError for one that does not fit into the context."""
        if arrival.prompt_tokens + arrival.output_tokens > self.config.max_model_len:
            raise ValueError(f"request {arrival.number}: longer than max_model_len")
        params = SettledParams(max_tokens=arrival.output_tokens)
        request = AddRequest(str(arrival.number), arrival.prompt(), params, GREEDY)
        sequence = Sequence.from_request(request, (), self.config.max_model_len)
        self._inbox.append(Served(arrival, sequence, self.index, now))
        if self._stretch is None:
            self._begin(now)
        else:
            self._stretch.cut(now)

    def finish(self) -> list[Served]:
        """Ends the stretch: adds its tokens, starts the next one; returns the requests that ended."""
        stretch = self._stretch
        if stretch is None:
            raise ValueError("finish: nothing runs")
        ends = stretch.ends
        self._count(stretch)
        ended = self._hand_out(stretch)
        self._stretch = None
        self._begin(ends)
        return ended

    @property
    def delay(self) -> float:
        """Serving time added to a request that arrives now, until the worker has it and its first token is back."""
        server = self._costs.server
        return server.per_request if self._stretch is None else server.per_request_busy

    def _begin(self, now: float) -> None:
        for served in self._inbox:
            self._served[served.sequence.request_id] = served
            self._scheduler.add(served.sequence)
        self._inbox.clear()
        if not self._scheduler.has_work:
            return
        chunks = self._scheduler.schedule()
        for chunk in chunks:
            served = self._served[chunk.sequence.request_id]
            if served.scheduled is None:
                served.scheduled = now
        shape, server = StepShape.of(chunks), self._costs.server
        seconds = self._costs.step.seconds(shape) + server.per_step + server.per_token * shape.samples
        more = self._costs.step.per_pair * shape.samples
        self._stretch = Stretch(now, chunks, self._alike(chunks), seconds, more)

    def _alike(self, chunks: list[ScheduledChunk]) -> int:
        """Steps from this one on that compute the next token of the same rows."""
        config = self.config
        if not self._skip_ahead or len(chunks) != self._scheduler.num_running:
            return 1
        if self._scheduler.num_waiting and len(chunks) < config.max_num_seqs:
            return 1
        count = config.max_model_len
        for chunk in chunks:
            if chunk.num_tokens != 1 or not chunk.samples:
                return 1
            count = min(count, chunk.sequence.max_tokens - len(chunk.sequence.output_token_ids))
        size = config.block_size
        missing = sum(
            -(-(chunk.sequence.num_tokens + count - 1) // size) - len(chunk.sequence.block_table) for chunk in chunks
        )
        return count if missing <= self._blocks.num_free else 1

    def _count(self, stretch: Stretch) -> None:
        seconds = stretch.ends - stretch.began
        waiting = self._scheduler.num_waiting
        self.busy += seconds
        self.waiting_seconds += waiting * seconds
        self.most_waiting = max(self.most_waiting, waiting + len(self._inbox))
        self.steps += stretch.count
        self.stretches += 1
        if self.schedule is not None:
            for step in range(stretch.count):
                self.schedule.append(
                    [(int(c.sequence.request_id), c.start + step, c.num_tokens) for c in stretch.chunks]
                )

    def _hand_out(self, stretch: Stretch) -> list[Served]:
        ended: list[Served] = []
        first, last, before = stretch.end_of(1), stretch.ends, stretch.count - 1
        at_once = 0
        for chunk in stretch.chunks:
            sequence = chunk.sequence
            served = self._served[sequence.request_id]
            sequence.num_computed += chunk.num_tokens
            if before:
                list.extend(sequence.output_token_ids, repeat(served.arrival.number, before))
                sequence.num_computed += before
                if not self._blocks.grow(sequence):
                    raise RuntimeError("a stretch was longer than the blocks suffice for")
            self._blocks.share_computed(sequence)
            if not chunk.samples:
                continue
            if served.first is None:
                served.first = first
            elif served.last == stretch.began:
                at_once += 1
            else:
                self.gaps.add(first - served.last, 1)
            sequence.append(served.arrival.number)
            served.last = last
            if sequence.finish_reason is not None:
                self._scheduler.release(sequence)
                del self._served[sequence.request_id]
                served.ended = last
                ended.append(served)
        if at_once:
            self.gaps.add(first - stretch.began, at_once)
        if before:
            self.gaps.add((last - first) / before, before * len(stretch.chunks))
        return ended


def _copy_nothing(source: int, target: int) -> None:
    """Replaces the copy of a block, whose time is not simulated."""
