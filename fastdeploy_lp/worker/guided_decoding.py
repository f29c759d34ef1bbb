"""Guided decoding in the worker: one matcher per sequence with a grammar, and the masks of a step."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray
from paddle import Tensor

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.config.speculation import GRAMMAR
from fastdeploy_lp.guided_decoding.compiler import (
    MASK_SECONDS,
    GrammarCompiler,
    GrammarError,
    allows,
    words_for,
)
from fastdeploy_lp.guided_decoding.grammar import opened_by
from fastdeploy_lp.guided_decoding.phased_matcher import Matcher, PhasedMatcher, WaitingMasks
from fastdeploy_lp.guided_decoding.threads import stack_bytes
from fastdeploy_lp.model_executor.ops.row_ops import RowOps
from fastdeploy_lp.worker.draft_walk import DraftWalk
from fastdeploy_lp.worker.guided_row import Compilation, GuidedRow
from fastdeploy_lp.worker.held_rows import HeldRows
from fastdeploy_lp.worker.logits_mask import NO_TOKENS, Followed, Lead, LogitsMask
from fastdeploy_lp.worker.mask_threads import SLOW_NICE, MaskThreads
from fastdeploy_lp.worker.masks_ahead import MasksAhead
from fastdeploy_lp.worker.sequence import Sequence as WorkerSequence

logger = logging.getLogger(__name__)

Walk = MasksAhead | DraftWalk

MAX_THREADS = 8
BUILD_THREADS = 4
GRACE_SECONDS = 0.01
"""Seconds that a step waits for masks, for all of its rows together, before it leaves late rows out."""

# Factor on the timeout: the API process accepts compilations up to the configured time, measured on another core.
BUILD_LENIENCY = 2.0


class GuidedDecoding(LogitsMask):
    """Rules out tokens that the requests' grammars do not allow; requests without a grammar have no state here.

    Threads of this class compile grammars, read sampled tokens and compute masks: the library releases the
    interpreter's lock. The mask of a token is computed as soon as the token before it is known. A step waits briefly
    for masks and leaves late rows out (`holds`). An error ends only its own request.
    """

    only_grammars = True

    def __init__(self, fd_config: FDConfig, ops: RowOps, held: HeldRows) -> None:
        config, bounds = fd_config.model_config, fd_config.guided_decoding_config
        directory, ends = Path(config.directory), config.eos_token_ids
        self._has_texts = not config.skip_tokenizer_init and (directory / "tokenizer.json").is_file()
        self._compiler = GrammarCompiler(directory, config.vocab_size, ends, bounds.cache_size)
        self._ends = frozenset(config.eos_token_ids)
        self._waiting = WaitingMasks(
            lambda: fd_config.tokenizer.vocabulary_bytes(config.vocab_size), config.vocab_size, config.eos_token_ids
        )
        self._ops = ops
        self._num_threads = min(len(os.sched_getaffinity(0)), MAX_THREADS)
        stack = stack_bytes(bounds.max_bytes)
        self._masks = MaskThreads(self._num_threads, stack, MASK_SECONDS, held.release)
        self._builds = MaskThreads(BUILD_THREADS, stack, bounds.timeout * BUILD_LENIENCY, held.release, SLOW_NICE)
        self._words = words_for(config.vocab_size)
        self._num_slots = fd_config.scheduler_config.max_num_seqs
        self._bits = np.empty((0, 0), np.int32)
        self._by_slot: dict[int, GuidedRow] = {}
        self._rows = np.empty(0, np.int64)
        self._step: list[tuple[int, GuidedRow]] = []
        self._ahead: dict[int, MasksAhead] = {}
        self._known_ahead: dict[int, int] = {}
        self._completed: set[int] = set()
        self._undecided: set[int] = set()
        self._overrun: set[int] = set()
        self._failures: dict[int, str] = {}
        self._changed = threading.Condition()
        self._held = held
        self._grace = GRACE_SECONDS
        speculation = fd_config.scheduler_config.speculation
        self._forces = speculation is not None and GRAMMAR in speculation.sources

    @property
    def active(self) -> bool:
        """True if any row of this step has a grammar."""
        return bool(self._step)

    @property
    def completed(self) -> set[int]:
        """Slots whose text is complete with this step's token."""
        return self._completed

    @property
    def undecided(self) -> set[int]:
        """Slots whose token no thread has read in time."""
        return self._undecided

    @property
    def overrun(self) -> set[int]:
        """Slots whose text was found complete too late for the step of its last token."""
        return self._overrun

    @property
    def failures(self) -> dict[int, str]:
        """Grammar errors by slot."""
        return self._failures

    def warm_up(self) -> None:
        """Reads the vocabulary while the library holds the interpreter's lock: 0.3 s for 49,152 tokens."""
        if not self._has_texts:
            return
        try:
            self._compiler.prepare()
        except GrammarError as error:
            logger.warning("requests with guided decoding are refused: %s", error)

    def enter(self, sequence: WorkerSequence) -> None:
        """Registers a sequence in its slot; a preempted one resumes at its last output token."""
        grammar, client = sequence.grammar, sequence.client
        if grammar is None:
            return
        if not self._bits.size:
            self._bits = np.empty((self._num_slots, self._words), np.int32)
        row = self._by_slot[sequence.slot] = GuidedRow(self._words, client, forces=self._forces)
        if not (self._builds.has_room_for(client) and self._masks.has_room_for(client)):
            row.fail(GrammarError("earlier grammars take more time than they may, and have not ended yet"))
            return
        form, phase = self._compiled(grammar, client), sequence.phase
        marker = None if phase is None else phase.opening
        opening = form if marker is None else self._compiled(opened_by(grammar, marker), client)
        matcher: Callable[[], Matcher] = partial(self._compiler.matcher_of, form)
        if phase is not None:
            begin_opening = None if marker is None else partial(self._compiler.matcher_of, opening)
            matcher = partial(
                PhasedMatcher, phase, partial(self._compiler.matcher_of, form), begin_opening, self._waiting
            )
        begin = partial(row.begin, matcher, list(sequence.output_token_ids))
        rows = iter([row])
        form.add_done_callback(
            lambda _: opening.add_done_callback(lambda _: self._builds.submit(partial(self._begin, rows, begin)))
        )

    def leave(self, slot: int) -> None:
        """Clears a slot."""
        row = self._by_slot.pop(slot, None)
        if row is not None and not row.ready:
            self._watch(row)

    def holds(self, slot: int) -> bool:
        """Returns True while the slot's mask is missing; first waits for it within the step's grace time."""
        row = self._by_slot.get(slot)
        if row is None or row.ready:
            return False
        if not row.slow:
            self._wait_for(lambda: row.ready)
        # In this order: the thread that makes the row ready checks `awaited` afterwards.
        row.awaited = True
        if row.ready:
            row.awaited = False
            return False
        self._watch(row)
        return True

    def needs_each_token(self, slot: int) -> bool:
        """Returns True if the slot has a grammar whose masks cannot be computed ahead."""
        row = self._by_slot.get(slot)
        return row is not None and not row.looks_ahead

    def begin(self, slots: NDArray[np.int64]) -> None:
        """Copies the masks of these slots' grammars."""
        self._completed, self._undecided, self._overrun = set(), set(), set()
        self._failures, self._step = {}, []
        if not self._by_slot:
            return
        guided = [(row, slot) for row, slot in enumerate(slots.tolist()) if slot in self._by_slot]
        self._step = [(slot, self._by_slot[slot]) for _, slot in guided]
        self._rows = np.array([row for row, _ in guided], np.int64)
        for index, (_, row) in enumerate(self._step):
            self._bits[index] = row.bits

    def apply(self, logits: Tensor, slots: NDArray[np.int64]) -> Tensor:  # noqa: ARG002 - slots are known from `begin`
        """Masks the logits in place and returns the same tensor."""
        if self._step:
            self._ops.mask(logits, self._rows, self._bits[: len(self._rows)])
        return logits

    def apply_to_copies(self, copies: Tensor, rows: NDArray[np.int64]) -> None:
        """Applies the masks to copies of rows that have one."""
        if not self._step:
            return
        masked = np.flatnonzero(np.isin(self._rows, rows))
        if masked.size:
            self._ops.mask(copies, np.searchsorted(rows, self._rows[masked]), self._bits[masked])

    def look_ahead(self, drafts: Mapping[int, Sequence[int]]) -> None:
        """Has threads compute the masks of drafts, on copies of the matchers."""
        guided = ((slot, self._by_slot[slot], draft) for slot, draft in drafts.items() if slot in self._by_slot)
        self._ahead = {slot: row.masks_ahead(draft, self._ends) for slot, row, draft in guided}
        self._start_walks([masks for masks in self._ahead.values() if not masks.ready])

    def known_ahead(self) -> Mapping[int, int]:
        """Returns the numbers of masks; waits for them within the step's grace time."""
        self._wait_for_walks(self._ahead.values())
        # A thread that is late may find more later.
        self._known_ahead = {slot: masks.known for slot, masks in self._ahead.items()}
        return self._known_ahead

    def apply_ahead(self, logits: Tensor, slots: NDArray[np.int64]) -> None:
        """See `LogitsMask.apply_ahead`."""
        if self._ahead:
            rows = np.flatnonzero(np.isin(slots, list(self._ahead)))
            bits = [masks.bits[: self._known_ahead[slot]] for slot, masks in self._ahead.items()]
            self._ops.mask(logits, rows, np.concatenate(bits))

    def accept(
        self,
        slots: NDArray[np.int64],  # noqa: ARG002 - known from `begin`
        tokens: NDArray[np.int64],
        further: Mapping[int, Sequence[int]] = NO_TOKENS,
    ) -> None:
        """Advances the grammars by the sampled tokens and starts computing the next masks."""
        if not self._step:
            return
        self._grace = GRACE_SECONDS
        self._overrun = {slot for slot, row in self._step if row.complete}
        first = tokens[self._rows].tolist()
        sampled = [
            (*each, [token, *further.get(each[0], ())])
            for each, token in zip(self._step, first, strict=True)
            if each[0] not in self._overrun
        ]
        self._follow([(row, run) for _, row, run in sampled if row.error is None and 0 <= run[0] not in self._ends])
        for slot, row, run in sampled:
            # In this order: a thread sets `consumed` last.
            consumed = row.consumed
            if row.error is not None:
                self._failures[slot] = row.error
            elif run[-1] in self._ends or row.complete:
                self._completed.add(slot)
            elif not consumed:
                self._undecided.add(slot)

    def forced(self, slot: int) -> list[int]:
        """Returns the tokens of the only text that may follow in the slot, once its mask is ready."""
        row = self._by_slot.get(slot)
        return row.forced if row is not None and row.ready else []

    def follow(self, drafts: Mapping[int, Lead]) -> Mapping[int, Followed]:
        """See `LogitsMask.follow`; waits within the step's grace time."""
        guided = ((slot, self._by_slot.get(slot), draft) for slot, draft in drafts.items())
        made = ((slot, row.draft_walk(draft, self._ends)) for slot, row, draft in guided if row is not None)
        walks = {slot: walk for slot, walk in made if walk is not None}
        self._start_walks(list(walks.values()))
        self._wait_for_walks(walks.values())
        return {slot: walk.found for slot, walk in walks.items() if walk.found is not None}

    def allows(self, slot: int, token: int) -> bool:
        """See `LogitsMask.allows`."""
        row = self._by_slot.get(slot)
        return row is None or not row.ready or allows(row.bits, token)

    def bans_in(self, slot: int) -> list[str]:
        """Returns "guided decoding" if the slot has a grammar."""
        return ["guided decoding"] if slot in self._by_slot else []

    def _wait_for(self, condition: Callable[[], bool]) -> None:
        """Waits until the condition holds, at most for what is left of the step's grace time."""
        if self._grace > 0:
            began = time.monotonic()
            with self._changed:
                self._changed.wait_for(condition, self._grace)
            self._grace -= time.monotonic() - began

    def _start_walks(self, walks: Sequence[Walk]) -> None:
        """Has threads walk along drafts."""
        remaining = iter(walks)
        for _ in range(min(self._num_threads, len(walks))):
            self._masks.submit(partial(self._walk, remaining))

    def _wait_for_walks(self, walks: Collection[Walk]) -> None:
        self._wait_for(lambda: all(walk.ready or walk.slow for walk in walks))
        for walk in walks:
            self._masks.watch(walk)

    def _walk(self, walks: Iterator[Walk]) -> None:
        for walk in walks:
            stays = self._masks.run(walk, walk.fill)
            with self._changed:
                self._changed.notify_all()
            if not stays:
                return

    def _follow(self, going_on: list[tuple[GuidedRow, list[int]]]) -> None:
        """Has threads read the tokens and compute masks; waits up to `GRACE_SECONDS` for the reading."""
        for row, _ in going_on:
            row.ready = row.consumed = False
        # One row can take longer than all others together: each free thread takes the next row.
        runs, to_fill = iter(going_on), deque[GuidedRow]()
        for _ in range(min(self._num_threads, len(going_on))):
            self._masks.submit(partial(self._read_and_fill, runs, to_fill))
        with self._changed:
            self._changed.wait_for(lambda: all(row.consumed or row.slow for row, _ in going_on), GRACE_SECONDS)
        for row, _ in going_on:
            if not row.consumed:
                self._watch(row)

    def _read_and_fill(self, runs: Iterator[tuple[GuidedRow, list[int]]], to_fill: deque[GuidedRow]) -> None:
        for row, run in runs:
            read = run[:-1] if run[-1] in self._ends else run
            stays = self._masks.run(row, partial(row.consume, read))
            if not stays:
                self._masks.run(row, row.fill)
                self._settled(row)
                return
            to_fill.append(row)
        with self._changed:
            self._changed.notify_all()
        while to_fill:
            with suppress(IndexError):  # another thread may have taken the last row
                row = to_fill.popleft()
                stays = self._masks.run(row, row.fill)
                self._settled(row)
                if not stays:
                    return

    def _compiled(self, grammar: str, client: str) -> Future[LLMatcher]:
        """Returns a grammar's compilation, which threads begin if it is new."""
        compiled, is_new = self._compiler.compiled(grammar)
        if is_new:
            compilation = Compilation(compiled, client)
            self._builds.submit(partial(self._compile, iter([compilation]), grammar, compiled))
            self._builds.watch(compilation)
        return compiled

    def _compile(self, compilations: Iterator[Compilation], grammar: str, compiled: Future[LLMatcher]) -> None:
        for compilation in compilations:
            self._builds.run(compilation, partial(self._compiler.compile, grammar, compiled))

    def _begin(self, rows: Iterator[GuidedRow], begin: Callable[[], None]) -> None:
        for row in rows:
            self._builds.run(row, begin)
            if row.ready:
                self._settled(row)
            else:
                self._masks.submit(partial(self._fill, iter([row])))

    def _fill(self, rows: Iterator[GuidedRow]) -> None:
        for row in rows:
            self._masks.run(row, row.fill)
            self._settled(row)

    def _watch(self, row: GuidedRow) -> None:
        (self._masks if row.begun else self._builds).watch(row)

    def _settled(self, row: GuidedRow) -> None:
        """Announces that a row's mask is ready."""
        with self._changed:
            self._changed.notify_all()
        if row.awaited:
            row.awaited = False
            self._held.release()
