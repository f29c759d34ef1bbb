"""Who runs in the next step: continuous batching over the slots, first come first served."""

from __future__ import annotations

import heapq
from collections import deque

from fastdeploy_lp.worker.block_manager import BlockManager
from fastdeploy_lp.worker.sequence import NO_SLOT, Sequence


class Scheduler:
    """Keeps waiting sequences in order and running ones in slots; the lowest free slot is taken first."""

    def __init__(self, max_num_seqs: int, max_prefill_tokens: int, blocks: BlockManager) -> None:
        self._max_prefill_tokens = max_prefill_tokens
        self._blocks = blocks
        self._free_slots = list(range(max_num_seqs))
        self._waiting: deque[Sequence] = deque()
        self._running: dict[int, Sequence] = {}

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

    def admit(self) -> list[Sequence]:
        """Move waiting sequences into free slots while their prompts fit into one step; gives the moved ones.

        At least one is moved if a slot is free, however long its prompt.
        """
        admitted: list[Sequence] = []
        tokens = 0
        while self._waiting and self._free_slots:
            tokens += self._waiting[0].num_tokens
            if admitted and tokens > self._max_prefill_tokens:
                break
            sequence = self._waiting.popleft()
            sequence.slot = heapq.heappop(self._free_slots)
            self._running[sequence.slot] = sequence
            admitted.append(sequence)
        return admitted

    def running(self) -> list[Sequence]:
        """All running sequences in ascending slot order, each with blocks for all of its tokens."""
        sequences = [self._running[slot] for slot in sorted(self._running)]
        for sequence in sequences:
            self._blocks.grow(sequence)
        return sequences

    def release(self, sequence: Sequence) -> None:
        """Free a running sequence's slot and blocks."""
        del self._running[sequence.slot]
        heapq.heappush(self._free_slots, sequence.slot)
        self._blocks.release(sequence)
        sequence.slot = NO_SLOT

    def take_out(self, request_ids: set[str]) -> list[Sequence]:
        """Drop these requests; gives those that were running, whose slots the caller has to release."""
        self._waiting = deque(s for s in self._waiting if s.request_id not in request_ids)
        return [s for s in self._running.values() if s.request_id in request_ids]
