"""Scheduler: continuous batching over the slots, long prompts in chunks, first come first served."""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice
from operator import attrgetter
from typing import Protocol

from fastdeploy_lp.config import SchedulerConfig
from fastdeploy_lp.logits_processor.chain.recorded_actions import Rewind
from fastdeploy_lp.stats import ProcessorStats
from fastdeploy_lp.worker.block_manager import BlockManager
from fastdeploy_lp.worker.drafters.drafter import Draft
from fastdeploy_lp.worker.fairness import ClientTurns, FairPromptBudget, PromptBudget, StepPace, UploadPace
from fastdeploy_lp.worker.sequence import NO_SLOT, ScheduledChunk, Sequence
from fastdeploy_lp.worker.slot_followers import SlotFollower

_by_slot = attrgetter("sequence.slot")


class WorkerSlots(SlotFollower, Protocol):
    """The worker as the scheduler uses it."""

    def holds(self, slot: int) -> bool:
        """Returns True while no token of the slot can be sampled."""

    def drafts(self, sequences: Iterable[Sequence], tokens: int, room: int) -> Mapping[int, Draft]:
        """Returns drafts by slot for sequences that compute one token each in a step of `tokens` tokens.

        room: tokens that may be added to the step.
        """

    @property
    def computes_ahead(self) -> bool:
        """True if the next tokens of a step's sequences may be computed before the host knows them."""


class Scheduler:
    """Keeps waiting sequences in order of arrival and running ones in slots; the lowest free slot is taken first.

    A step computes at most `max_num_batched_tokens` tokens: first one token of each generating sequence, then prompts
    in order of arrival, with `fair_queue` in equal shares per client. While sequences generate, `pace` may reduce the
    prompts' tokens. A sequence is admitted while the step's budget has tokens left, with blocks for its whole prompt.
    So the budget bounds the number of running sequences, and every generating one gets its token in every step. When a
    generating sequence finds no free block, the youngest running one is preempted: it returns to the head of the queue
    and recomputes its tokens later. A sequence whose slot is held keeps the slot but gets no token; `uploads` and
    `turns` hold some, so that the others get theirs in time.
    """

    def __init__(self, config: SchedulerConfig, blocks: BlockManager, slots: WorkerSlots) -> None:
        self._budget = config.max_num_batched_tokens
        self._blocks = blocks
        self._slots = slots
        self._free_slots = list(range(config.max_num_seqs))
        self._waiting: deque[Sequence] = deque()
        # In order of arrival: admission takes the head of the queue, preemption the last running sequence.
        self._running: dict[int, Sequence] = {}
        self._fair = config.fair_queue
        self.pace = StepPace(config.prompt_step_seconds)
        self.uploads = UploadPace(config.upload_time_share)
        self.turns = ClientTurns(config.client_time_share)
        self.num_preemptions = 0

    @property
    def num_waiting(self) -> int:
        """Sequences without a slot."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Sequences in slots."""
        return len(self._running)

    @property
    def has_work(self) -> bool:
        """True if any sequence waits or runs."""
        return bool(self._waiting or self._running)

    def add(self, sequence: Sequence) -> None:
        """Queues a sequence."""
        self._waiting.append(sequence)

    def schedule(self) -> list[ScheduledChunk]:
        """Returns the next step's chunks in ascending slot order; every sequence has the blocks it needs.

        With work left, the result is empty only if all slots are held.
        """
        preemptions = self.num_preemptions
        ready = [slot for slot, each in self._running.items() if self._can_generate(slot, each)]
        self.uploads.begin(ready)
        self.turns.begin((slot for slot in ready if not self.uploads.holds(slot)), self._prompts())
        chunks = self._generating()
        if not chunks:
            # The sequences beside which others were held may all have been preempted.
            self.uploads.begin(())
            self.turns.begin((), ())
            chunks = self._generating()
        budget = self._prompt_budget(len(chunks))
        self._continue_prompts(chunks, budget)
        # Admission would take the blocks that preemption has just freed.
        if self.num_preemptions == preemptions:
            self._admit(chunks, budget)
        self._add_drafts(chunks)
        self._let_go_ahead(chunks)
        chunks.sort(key=_by_slot)
        return chunks

    def release(self, sequence: Sequence) -> None:
        """Frees a running sequence's slot and blocks."""
        slot, sequence.slot = sequence.slot, NO_SLOT
        del self._running[slot]
        heapq.heappush(self._free_slots, slot)
        self.uploads.leave(slot)
        self.turns.leave(slot)
        self._slots.leave(slot)
        self._blocks.release(sequence)

    def abort(self, request_ids: set[str]) -> None:
        """Drops these waiting or running requests; frees slots and blocks of running ones at once."""
        self._waiting = deque(sequence for sequence in self._waiting if sequence.request_id not in request_ids)
        for sequence in [each for each in self._running.values() if each.request_id in request_ids]:
            self.release(sequence)

    def preempt(self) -> None:
        """Returns the youngest running sequence to the head of the queue, since it arrived before all waiting ones."""
        sequence = next(reversed(self._running.values()))
        self.release(sequence)
        sequence.was_preempted = True
        self._waiting.appendleft(sequence)
        self.num_preemptions += 1

    def rewind(self, sequence: Sequence, rewind: Rewind, names: Collection[str] = ()) -> None:
        """Takes back output tokens of a running sequence, which keeps its slot and enters it again.

        names: of the processors that asked for it.
        """
        sequence.rewind(rewind, names)
        self._slots.leave(sequence.slot)
        self._blocks.rewind(sequence)
        self._slots.enter(sequence)

    def took(self, chunks: Iterable[ScheduledChunk], seconds: float, stats: Mapping[str, ProcessorStats]) -> None:
        """Records the duration of a step of these chunks; `stats` has the seconds of all processors until now."""
        num_generating = num_prompt_tokens = drafted = 0
        for chunk in chunks:
            drafted += len(chunk.draft)
            if chunk.samples and chunk.num_tokens == 1:
                num_generating += 1
            else:
                num_prompt_tokens += chunk.cost
        self.pace.took(seconds, num_generating, num_prompt_tokens)
        self.uploads.took(seconds, stats)
        self.turns.took(num_generating, num_generating + num_prompt_tokens + drafted, seconds)

    def _can_generate(self, slot: int, sequence: Sequence) -> bool:
        return sequence.num_tokens - sequence.num_computed == 1 and not self._slots.holds(slot)

    def _generating(self) -> list[ScheduledChunk]:
        """Returns chunks of the sequences that have one token left to compute."""
        chunks: list[ScheduledChunk] = []
        for sequence in tuple(self._running.values()):
            # May have been preempted above for an older sequence.
            if sequence.slot == NO_SLOT:
                continue
            generates = sequence.num_tokens - sequence.num_computed == 1
            if generates and self._holds(sequence.slot):
                continue
            # A prompt has all of its blocks, but after a rewind one may be missing.
            while not self._blocks.grow(sequence):
                self.preempt()
                if sequence.slot == NO_SLOT:
                    break
            else:
                if generates:
                    chunks.append(ScheduledChunk(sequence, 1))
        return chunks

    def _add_drafts(self, chunks: list[ScheduledChunk]) -> None:
        """Spends what is left of the budget, and blocks that no sequence is about to need, on draft tokens."""
        generating = {
            chunk.sequence.slot: chunk
            for chunk in chunks
            if chunk.samples and chunk.num_tokens == 1 and chunk.sequence.finish_reason is None
        }
        taken = sum(chunk.cost for chunk in chunks)
        room = min(self._budget - taken, self.turns.room(taken))
        if not generating or room <= 0:
            return
        tokens = sum(chunk.num_tokens for chunk in chunks)
        drafts = self._slots.drafts([chunk.sequence for chunk in generating.values()], tokens, room)
        for slot, draft in drafts.items():
            chunk = generating[slot]
            fitting = self._blocks.grow_ahead(chunk.sequence, len(draft.tokens), spare=len(self._running))
            chunk.draft, chunk.draft_kind = draft.tokens[:fitting], draft.kind

    def _let_go_ahead(self, chunks: list[ScheduledChunk]) -> None:
        """Assigns blocks for the next tokens, if the next step is likely to be theirs alone.

        A sequence that waits is rarely admitted before another one ends.
        """
        if not self._slots.computes_ahead or len(chunks) < len(self._running):
            return
        if not all(chunk.samples and not chunk.draft for chunk in chunks):
            return
        going = [chunk for chunk in chunks if not chunk.sequence.ends_next]
        if all(self._blocks.grow_ahead(chunk.sequence, 1, spare=len(self._running)) for chunk in going):
            for chunk in going:
                chunk.goes_ahead = True

    def _prompts(self) -> Iterator[Sequence]:
        """Yields the sequences whose prompts a step may compute, oldest first."""
        yield from (each for each in self._running.values() if each.num_tokens - each.num_computed > 1)
        yield from islice(self._waiting, len(self._free_slots))

    def _prompt_budget(self, num_generating: int) -> PromptBudget | FairPromptBudget:
        """Returns the prompts' part of the tokens of a step, beside so many sequences that generate."""
        candidates = list(self._prompts()) if self._fair else ()
        left = self._budget - num_generating
        if num_generating:
            # A token for each client: a slow prompt does not stop others.
            least = len({each.client for each in candidates}) or 1
            left = self.pace.allowance(min(left, self.turns.room(num_generating, least)), least)
        return FairPromptBudget(left, candidates) if self._fair else PromptBudget(left)

    def _continue_prompts(self, chunks: list[ScheduledChunk], budget: PromptBudget | FairPromptBudget) -> None:
        """Spends the budget on started prompts, oldest first."""
        for sequence in self._running.values():
            left = sequence.num_tokens - sequence.num_computed
            if left > 1:
                self._append(chunks, sequence, budget)

    def _admit(self, chunks: list[ScheduledChunk], budget: PromptBudget | FairPromptBudget) -> None:
        if not (self._waiting and self._free_slots and budget.has_tokens_for(self._waiting[0])):
            return
        in_progress = {name for c in chunks for name in self._blocks.completed_by(c.sequence, c.num_tokens)}
        while self._waiting and self._free_slots:
            sequence = self._waiting[0]
            if not budget.has_tokens_for(sequence):
                return
            prefix = self._blocks.find_prefix(sequence)
            # Another sequence computes its next block in this step and can share it in the next.
            if not in_progress.isdisjoint(sequence.block_hashes[len(prefix.blocks) : len(prefix.blocks) + 1]):
                return
            # Spare blocks: each running sequence may soon need one and would preempt the new sequence.
            if not self._blocks.admit(sequence, prefix, spare=len(self._running)):
                return
            self._waiting.popleft()
            if sequence.scheduled_at is None:
                sequence.scheduled_at = time.monotonic()
            sequence.slot = heapq.heappop(self._free_slots)
            self._running[sequence.slot] = sequence
            self.uploads.enter(sequence)
            self.turns.enter(sequence)
            self._slots.enter(sequence)
            granted = self._append(chunks, sequence, budget)
            in_progress.update(self._blocks.completed_by(sequence, granted))

    def _holds(self, slot: int) -> bool:
        return self.uploads.holds(slot) or self.turns.holds(slot) or self._slots.holds(slot)

    def _append(self, chunks: list[ScheduledChunk], sequence: Sequence, budget: PromptBudget | FairPromptBudget) -> int:
        """Spends the budget on a prompt; returns the number of tokens. The last token of a held prompt waits."""
        wanted = sequence.num_tokens - sequence.num_computed - self._holds(sequence.slot)
        granted = budget.grant(sequence, wanted) if wanted else 0
        if granted:
            chunks.append(ScheduledChunk(sequence, granted))
            if chunks[-1].samples:
                self.uploads.take_turn(sequence.slot)
        return granted
