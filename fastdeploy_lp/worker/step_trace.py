"""Traces: the traced requests by slot, and of one step copies of their rows after each stage, with statistics."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle import Tensor

from fastdeploy_lp.logits_processor.chain.trace import ChainTrace
from fastdeploy_lp.messages import StageNumbers, StageTrace
from fastdeploy_lp.model_executor.ops.row_ops import Draws, Int64s, RowOps
from fastdeploy_lp.platforms import to_device
from fastdeploy_lp.request.trace import PENALTIES, PROCESSOR, RAN, SAMPLING, TraceParams
from fastdeploy_lp.worker.sampler.draw_watcher import DrawWatcher, FieldEdits
from fastdeploy_lp.worker.sequence import Sequence as WorkerSequence

FILTERED, FINAL = "filtered", "final"
# Initial capacity in copies per traced row; it grows as needed.
STAGES = 8


@dataclass(frozen=True)
class _Stage:
    """A stage of a slot's trace. `place`: index of its copy among the kept rows; None without a copy."""

    name: str
    kind: str
    status: str
    seconds: float
    place: int | None


@dataclass(frozen=True)
class _Mark:
    """Position to restart from: stages recorded per slot, and rows kept."""

    told: dict[int, int]
    rows: int


class RowStack:
    """Growable stack of rows; `expected` is the initial capacity."""

    def __init__(self, ops: RowOps, expected: int) -> None:
        self._ops = ops
        self._expected = expected
        self._rows: Tensor | None = None
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def push(self, logits: Tensor, rows: Int64s) -> None:
        """Appends copies of these rows of logits [*, vocab_size]."""
        end = self._count + len(rows)
        if self._rows is None:
            self._rows = paddle.empty([max(self._expected, end), logits.shape[-1]], "float32")
        elif end > self._rows.shape[0]:
            self._rows = paddle.concat([self._rows, paddle.empty([end, logits.shape[-1]], "float32")])
        self._ops.copy_rows(logits, rows, self._rows, self._count)
        self._count = end

    def cut(self, count: int) -> None:
        """Keeps the first `count` rows."""
        self._count = min(self._count, count)

    def take(self) -> Tensor:
        """Returns all rows, float32 [rows, vocab_size]; raises ValueError if there are none."""
        if self._rows is None or not self._count:
            raise ValueError("rows: there are none")
        return self._rows[: self._count]


class StepTrace(ChainTrace, DrawWatcher):
    """Keeps copies of the traced rows only.

    rows: traced rows of the step's logits by slot, ascending. counts: by slot, the number of most likely tokens to
    report. After the step's read, `stages` has the stages of each slot.
    """

    def __init__(self, ops: RowOps, rows: Mapping[int, int], counts: Mapping[int, int]) -> None:
        self._ops = ops
        self._rows = rows
        self._counts = counts
        self._told: dict[int, list[_Stage]] = {slot: [] for slot in rows}
        self._kept = RowStack(ops, STAGES * len(rows))
        # For each kept row, its slot and the slot's previous kept row.
        self._slots: list[int] = []
        self._before: list[int] = []
        self._began_part = _Mark(dict.fromkeys(rows, 0), 0)
        self.stages: dict[int, list[StageTrace]] = {}
        self.start_clock()

    @property
    def slots(self) -> list[int]:
        """Traced slots, for the chain."""
        return list(self._rows)

    def start_clock(self) -> None:
        """Starts timing the next stage."""
        self._began = time.perf_counter()

    def keep(self, name: str, kind: str, logits: Tensor, slots: Sequence[int] | None = None) -> None:
        """Records a stage of these slots (default: all traced ones) from its output, logits [rows, vocab_size]."""
        seconds = time.perf_counter() - self._began
        slots = self.slots if slots is None else slots
        if slots:
            rows = np.array([self._rows[slot] for slot in slots], np.int64)
            self._put(name, kind, slots, logits, rows, seconds)
        self.start_clock()

    def was_processed(self, slot: int) -> bool:
        """Returns True if a processor has run on the slot's row."""
        return any(stage.kind == PROCESSOR and stage.status == RAN for stage in self._told[slot])

    def begin(self) -> None:
        """Marks the start of a part of the chain."""
        self._began_part = _Mark({slot: len(stages) for slot, stages in self._told.items()}, len(self._slots))

    def restart(self) -> None:
        """Discards the stages recorded since the mark."""
        mark = self._began_part
        for slot, stages in self._told.items():
            del stages[mark.told[slot] :]
        self._kept.cut(mark.rows)
        del self._slots[mark.rows :], self._before[mark.rows :]

    def ran(self, name: str, slots: Sequence[int], rows: Int64s, logits: Tensor, seconds: float) -> None:
        """Copies the rows that a processor has produced."""
        self._put(name, PROCESSOR, slots, logits, rows, seconds)

    def filtered(self, slots: Sequence[int], rows: Int64s, logits: Tensor) -> None:
        """Copies the rows that the filters have produced."""
        if slots:
            self._put(FILTERED, SAMPLING, slots, logits, rows, time.perf_counter() - self._began)
        self.start_clock()

    def did_not_run(self, name: str, slots: Sequence[int], status: str) -> None:
        """Records that a processor did not run on these slots."""
        for slot in slots:
            self._told[slot].append(_Stage(name, PROCESSOR, status, 0.0, None))

    def edited(self, logits: Tensor, slots: Int64s, tail: FieldEdits) -> None:  # noqa: ARG002 - slots of this step
        """Copies the rows that penalties and bans change."""
        self.keep(PENALTIES, PENALTIES, logits, [slot for slot in self._rows if tail.works_on(slot)])

    def drawn(self, logits: Tensor, draws: Draws, tokens: Tensor) -> list[Tensor]:
        """Computes the statistics on the device; a greedy row's last stage is derived from the previous one."""
        seconds = time.perf_counter() - self._began
        random = [slot for slot, row in self._rows.items() if draws.temperature[row] > 0]
        if random:
            rows = np.array([self._rows[slot] for slot in random], np.int64)
            drawn_from = paddle.empty([len(random), logits.shape[-1]], "float32")
            self._ops.copy_rows(logits, rows, drawn_from, 0)
            kept = self._ops.filtered(drawn_from, draws.of(rows))
            self._put(FINAL, SAMPLING, random, kept, np.arange(len(random)), seconds)
        for slot in self._rows:
            if slot not in random:
                self._told[slot].append(_Stage(FINAL, SAMPLING, RAN, seconds, None))
        kept = self._kept.take()
        rows = np.array([self._rows[slot] for slot in self._slots], np.int64)
        chosen = paddle.gather(tokens, to_device(rows))
        top = self._ops.logprobs(kept, chosen, max(self._counts.values()), normalize=False)
        found = self._ops.compare(kept, np.array(self._before, np.int64))
        numbers = [found.log_sums, found.entropies, found.moved, found.most_likely]
        return [top.values, top.tokens, top.ranks, *numbers]

    def take(self, tokens: Int64s, read: Iterator[NDArray[Any]]) -> None:
        """Builds `stages` from the host copies."""
        columns = [next(read).tolist() for _ in range(7)]
        rows = list(zip(*columns, strict=True))
        for slot, stages in self._told.items():
            told = self.stages[slot] = []
            for stage in stages:
                numbers = None
                if stage.place is not None:
                    numbers = _numbers(self._counts[slot], *rows[stage.place])
                elif stage.kind == SAMPLING:
                    numbers = _greedy(int(tokens[self._rows[slot]]), _last(told))
                told.append(StageTrace(stage.name, stage.kind, stage.status, stage.seconds, numbers))

    def _put(self, name: str, kind: str, slots: Sequence[int], logits: Tensor, rows: Int64s, seconds: float) -> None:
        self._kept.push(logits, rows)
        for slot in slots:
            places = [stage.place for stage in self._told[slot] if stage.place is not None]
            self._before.append(places[-1] if places else -1)
            self._told[slot].append(_Stage(name, kind, RAN, seconds, len(self._slots)))
            self._slots.append(slot)


class Tracing:
    """Tracks traced requests in slots; other requests cost nothing."""

    def __init__(self, ops: RowOps) -> None:
        self._ops = ops
        self._by_slot: dict[int, tuple[WorkerSequence, TraceParams]] = {}

    def enter(self, sequence: WorkerSequence) -> None:
        """Registers a sequence if it is traced."""
        if sequence.params.trace is not None:
            self._by_slot[sequence.slot] = (sequence, sequence.params.trace)

    def leave(self, slot: int) -> None:
        """Clears a slot."""
        self._by_slot.pop(slot, None)

    def needs_each_token(self, slot: int) -> bool:
        """Returns True if the slot's next token is traced."""
        return self._traces(slot)

    def begin(self, slots: Int64s) -> StepTrace | None:
        """Returns a trace of the slots whose next token is traced, or None; row r is slot `slots[r]`."""
        if not self._by_slot:
            return None
        rows = {slot: row for row, slot in enumerate(slots.tolist()) if self._traces(slot)}
        return StepTrace(self._ops, rows, {slot: self._by_slot[slot][1].top_k for slot in rows}) if rows else None

    def _traces(self, slot: int) -> bool:
        if slot not in self._by_slot:
            return False
        sequence, trace = self._by_slot[slot]
        return trace.max_tokens is None or len(sequence.output_token_ids) < trace.max_tokens


def _numbers(
    count: int,
    values: list[float],
    tokens: list[float],
    rank: float,
    log_sum: float,
    entropy: float,
    moved: float,
    most_likely: float,
) -> StageNumbers:
    """Returns one row's numbers; its chosen token precedes the most likely ones, and ruled-out tokens are omitted."""
    top = [(int(token), value) for token, value in zip(tokens[1 : count + 1], values[1:], strict=False)]
    top = [(token, value) for token, value in top if value > -math.inf]
    return StageNumbers(
        token_ids=[token for token, _ in top],
        logits=[value for _, value in top],
        log_sum=log_sum,
        entropy=entropy,
        moved=moved,
        most_likely=int(most_likely),
        logit=values[0],
        rank=int(rank),
    )


def _last(told: Sequence[StageTrace]) -> StageNumbers:
    return next(stage.numbers for stage in reversed(told) if stage.numbers is not None)


def _greedy(token: int, before: StageNumbers) -> StageNumbers:
    """Returns the numbers of a greedy draw: all probability is on the chosen token."""
    moved = 1.0 - math.exp(before.logit - before.log_sum)
    return StageNumbers([token], [before.logit], before.logit, 0.0, moved, token, before.logit, 1)
