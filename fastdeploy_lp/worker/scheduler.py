"""What the next step computes: continuous batching over the slots, long prompts in chunks, first come first served."""

from __future__ import annotations

import heapq
import time
from collections import deque
from itertools import islice
from operator import attrgetter
from typing import Protocol

from fastdeploy_lp.config import SchedulerConfig
from fastdeploy_lp.worker.block_manager import BlockManager
from fastdeploy_lp.worker.prompt_budget import FairPromptBudget, PromptBudget
from fastdeploy_lp.worker.scheduled import ScheduledChunk
from fastdeploy_lp.worker.sequence import NO_SLOT, Sequence
from fastdeploy_lp.worker.step_pace import StepPace

_by_slot = attrgetter("sequence.slot")


class Slots(Protocol):
    """Who has to know which sequence is in which slot."""

    def enter(self, sequence: Sequence) -> None:
        """A sequence has taken `sequence.slot`."""

    def leave(self, slot: int) -> None:
        """A slot is empty again."""

    def holds(self, slot: int) -> bool:
        """True while no token of the slot can be sampled."""


class Scheduler:
    """Keeps waiting sequences in order of arrival and running ones in slots; the lowest free slot is taken first.

    A step computes at most `max_num_batched_tokens` tokens: first the one token of each sequence that generates, then
    prompts in order of arrival, with `fair_queue` in equal shares of their clients. While sequences generate, `pace`
    may leave prompts less. A sequence is admitted while tokens of the step's budget are left, with blocks for its
    whole prompt. So no more sequences run than the budget has tokens, and every generating one gets its token in every
    step. When a generating sequence finds no block, the youngest running one is preempted: it goes back to the head of
    the queue and computes its tokens anew later. A slot may be held, which its sequence then has without a token.
    """

    def __init__(self, config: SchedulerConfig, blocks: BlockManager, slots: Slots) -> None:
        self._budget = config.max_num_batched_tokens
        self._blocks = blocks
        self._slots = slots
        self._free_slots = list(range(config.max_num_seqs))
        self._waiting: deque[Sequence] = deque()
        # In order of arrival: admission takes the head of the queue, and preemption the last of these.
        self._running: dict[int, Sequence] = {}
        self._fair = config.fair_queue
        self.pace = StepPace(config.prompt_step_seconds)
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
        """Whether a step would do anything."""
        return bool(self._waiting or self._running)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence."""
        self._waiting.append(sequence)

    def schedule(self) -> list[ScheduledChunk]:
        """What the next step computes, in ascending order of slots; every sequence has the blocks that it needs.

        Empty while there is work only if all of it is held.
        """
        preemptions = self.num_preemptions
        chunks = self._generating()
        left = self._budget - len(chunks)
        budget = self._prompt_budget(self.pace.allowance(left) if chunks else left)
        self._continue_prompts(chunks, budget)
        # Admitting now would take the blocks that the preempted ones have just made room with.
        if self.num_preemptions == preemptions:
            self._admit(chunks, budget)
        chunks.sort(key=_by_slot)
        return chunks

    def release(self, sequence: Sequence) -> None:
        """Free a running sequence's slot and blocks."""
        slot, sequence.slot = sequence.slot, NO_SLOT
        del self._running[slot]
        heapq.heappush(self._free_slots, slot)
        self._slots.leave(slot)
        self._blocks.release(sequence)

    def abort(self, request_ids: set[str]) -> None:
        """Drop these requests wherever they are; the slots and blocks of those that run are free at once."""
        self._waiting = deque(sequence for sequence in self._waiting if sequence.request_id not in request_ids)
        for sequence in [each for each in self._running.values() if each.request_id in request_ids]:
            self.release(sequence)

    def preempt(self) -> None:
        """Send the youngest running sequence back to the head of the queue, where it was before all that wait."""
        sequence = next(reversed(self._running.values()))
        self.release(sequence)
        sequence.was_preempted = True
        self._waiting.appendleft(sequence)
        self.num_preemptions += 1

    def _generating(self) -> list[ScheduledChunk]:
        """The sequences that have one token left to compute."""
        chunks: list[ScheduledChunk] = []
        for sequence in tuple(self._running.values()):
            # Younger ones may have had to go for an older one's block meanwhile.
            if sequence.slot == NO_SLOT or sequence.num_tokens - sequence.num_computed != 1:
                continue
            if self._slots.holds(sequence.slot):
                continue
            while not self._blocks.grow(sequence):
                self.preempt()
                if sequence.slot == NO_SLOT:
                    break
            else:
                chunks.append(ScheduledChunk(sequence, 1))
        return chunks

    def _prompt_budget(self, tokens: int) -> PromptBudget | FairPromptBudget:
        if not self._fair:
            return PromptBudget(tokens)
        begun = [each for each in self._running.values() if each.num_tokens - each.num_computed > 1]
        return FairPromptBudget(tokens, [*begun, *islice(self._waiting, len(self._free_slots))])

    def _continue_prompts(self, chunks: list[ScheduledChunk], budget: PromptBudget | FairPromptBudget) -> None:
        """Spend the budget on prompts that have begun, oldest first."""
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
            # Another sequence computes its next block in this very step: in the next one it is there to be shared.
            if not in_progress.isdisjoint(sequence.block_hashes[len(prefix) : len(prefix) + 1]):
                return
            # Each running sequence may want a block soon, and would push the new one out again.
            if not self._blocks.admit(sequence, prefix, spare=len(self._running)):
                return
            self._waiting.popleft()
            if sequence.scheduled_at is None:
                sequence.scheduled_at = time.monotonic()
            sequence.slot = heapq.heappop(self._free_slots)
            self._running[sequence.slot] = sequence
            self._slots.enter(sequence)
            granted = self._append(chunks, sequence, budget)
            in_progress.update(self._blocks.completed_by(sequence, granted))

    def _append(self, chunks: list[ScheduledChunk], sequence: Sequence, budget: PromptBudget | FairPromptBudget) -> int:
        """Spend the budget on a prompt; returns the number of tokens. The last token of a held one has to wait."""
        wanted = sequence.num_tokens - sequence.num_computed - self._slots.holds(sequence.slot)
        granted = budget.grant(sequence, wanted) if wanted else 0
        if granted:
            chunks.append(ScheduledChunk(sequence, granted))
        return granted
