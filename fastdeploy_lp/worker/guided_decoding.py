"""Guided decoding in the worker: a matcher for each sequence with a grammar, and the masks of a step."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from paddle import Tensor

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.guided_decoding.compiler import GrammarCompiler, GrammarError, GrammarMatcher, words_for
from fastdeploy_lp.guided_decoding.threads import GrammarThreads
from fastdeploy_lp.model_executor.ops.row_ops import RowOps
from fastdeploy_lp.platforms import current_platform
from fastdeploy_lp.worker.logits_mask import LogitsMask
from fastdeploy_lp.worker.sequence import Sequence

EVERYTHING = -1
MAX_THREADS = 8


class GuidedRow:
    """One sequence's matcher, which is ready when its grammar is compiled and has seen the sequence's tokens."""

    def __init__(self, building: Future[GrammarMatcher]) -> None:
        self._building = building
        self.error: str | None = None

    @property
    def matcher(self) -> GrammarMatcher:
        """Waits until it is built; raises GrammarError."""
        return self._building.result()

    def fill(self, bits: NDArray[np.int32]) -> None:
        """The mask of the next token, [words]; everything is allowed behind an error, which ends the request."""
        try:
            self.matcher.fill(bits)
        except BaseException as error:  # noqa: BLE001 - a panic of the library, too, is this request's own
            self.fail(error)
        if self.error is not None:
            bits[:] = EVERYTHING

    def consume(self, token: int) -> bool:
        """Whether the text is complete with this token."""
        try:
            self.matcher.consume([token])
            return self.matcher.is_complete
        except BaseException as error:  # noqa: BLE001 - as above
            self.fail(error)
            return False

    def fail(self, error: BaseException) -> None:
        """It can not go on; the first reason counts."""
        reason = str(error) if isinstance(error, GrammarError) else f"{type(error).__name__}: {error}"
        self.error = self.error or f"guided decoding cannot go on: {reason}"


class GuidedDecoding(LogitsMask):
    """Rules out what the grammars of requests do not allow; requests without one have no state here.

    Grammars are compiled, and masks computed, by threads of this class: the library works without the interpreter's
    lock. A step waits for them when the model has its logits, or before it runs if it needs the same cores. An error
    ends the request that it belongs to.
    """

    def __init__(self, fd_config: FDConfig, ops: RowOps) -> None:
        config, bounds = fd_config.model_config, fd_config.guided_decoding_config
        directory, ends = Path(config.directory), config.eos_token_ids
        self._compiler = GrammarCompiler(directory, config.vocab_size, ends, bounds.cache_size)
        self._ends = frozenset(config.eos_token_ids)
        self._ops = ops
        # Threads that compute a layer together wait for the one that a mask has taken the core from: a step of 32 rows
        # becomes 4 % shorter when the masks come first.
        self._model_wants_cores = current_platform().computes_on_host
        self._num_threads = min(len(os.sched_getaffinity(0)), MAX_THREADS)
        self._threads = GrammarThreads(self._num_threads, "guided", bounds.max_bytes)
        self._shape = (fd_config.scheduler_config.max_num_seqs, words_for(config.vocab_size))
        self._bits = np.empty((0, 0), np.int32)
        self._by_slot: dict[int, GuidedRow] = {}
        self._rows = np.empty(0, np.int64)
        self._step: list[tuple[int, GuidedRow]] = []
        self._masks: list[Future[None]] = []
        self._completed: set[int] = set()
        self._failures: dict[int, str] = {}

    @property
    def active(self) -> bool:
        """Whether a row of this step has a grammar."""
        return bool(self._step)

    @property
    def completed(self) -> set[int]:
        """The slots whose text is complete with this step's token."""
        return self._completed

    @property
    def failures(self) -> dict[int, str]:
        """By slot, what is wrong with a grammar."""
        return self._failures

    def enter(self, sequence: Sequence) -> None:
        """A sequence takes its slot; one that comes back goes on where it was."""
        if sequence.grammar is None:
            return
        if not self._bits.size:
            self._bits = np.empty(self._shape, np.int32)
        building = self._threads.submit(self._build, sequence.grammar, list(sequence.output_token_ids))
        self._by_slot[sequence.slot] = GuidedRow(building)

    def leave(self, slot: int) -> None:
        """A slot is empty again."""
        self._by_slot.pop(slot, None)

    def begin(self, slots: NDArray[np.int64]) -> None:
        """Start computing the masks of these slots' grammars."""
        self._completed, self._failures, self._step = set(), {}, []
        if not self._by_slot:
            return
        guided = [(row, slot) for row, slot in enumerate(slots.tolist()) if slot in self._by_slot]
        if not guided:
            return
        self._step = [(slot, self._by_slot[slot]) for _, slot in guided]
        self._rows = np.array([row for row, _ in guided], np.int64)
        # One row can take as long as all others: threads take the next row as they come free.
        rows = iter(range(len(guided)))
        num_threads = min(self._num_threads, len(guided))
        self._masks = [self._threads.submit(self._fill, rows) for _ in range(num_threads)]
        if self._model_wants_cores:
            self._wait()

    def apply(self, logits: Tensor, slots: NDArray[np.int64]) -> Tensor:  # noqa: ARG002 - those of `begin`
        """The same tensor, changed in place."""
        if self._step:
            self._wait()
            self._ops.mask(logits, self._rows, self._bits[: len(self._rows)])
        return logits

    def apply_to_copies(self, copies: Tensor, rows: NDArray[np.int64]) -> None:
        """The masks of those rows that have one."""
        if not self._step:
            return
        masked = np.flatnonzero(np.isin(self._rows, rows))
        if masked.size:
            self._ops.mask(copies, np.searchsorted(rows, self._rows[masked]), self._bits[masked])

    def accept(self, slots: NDArray[np.int64], tokens: NDArray[np.int64]) -> None:  # noqa: ARG002 - those of `begin`
        """Follow the grammars over the sampled tokens."""
        if not self._step:
            return
        for (slot, guided), token in zip(self._step, tokens[self._rows].tolist(), strict=True):
            if guided.error is None and token >= 0 and (token in self._ends or guided.consume(token)):
                self._completed.add(slot)
            if guided.error is not None:
                self._failures[slot] = guided.error

    def bans_in(self, slot: int) -> list[str]:
        """Whether a grammar is there."""
        return ["guided decoding"] if slot in self._by_slot else []

    def _wait(self) -> None:
        for part in self._masks:
            part.result()

    def _build(self, grammar: str, output: list[int]) -> GrammarMatcher:
        matcher = self._compiler.matcher(grammar)
        matcher.consume(output)
        return matcher

    def _fill(self, rows: Iterator[int]) -> None:
        for index in rows:
            self._step[index][1].fill(self._bits[index])
