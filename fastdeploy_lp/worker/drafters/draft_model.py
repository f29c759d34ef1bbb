"""Drafts of a second, smaller model of the same vocabulary."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import numpy as np

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.config.speculation import DRAFT_MODEL
from fastdeploy_lp.model_executor.forward_batch import SequenceChunk
from fastdeploy_lp.worker.drafters.draft_cache import DraftCache
from fastdeploy_lp.worker.drafters.drafter import Draft, Drafter
from fastdeploy_lp.worker.drafters.greedy_model import GreedyModel
from fastdeploy_lp.worker.sequence import Sequence


class DraftModelDrafter(Drafter):
    """Continues sequences greedily, all of them together: one pass for each drafted token.

    Source: Leviathan et al., "Fast Inference from Transformers via Speculative Decoding", 2023, with greedy drafts.
    The first pass also computes the tokens that the model has not seen, at most the number that a step may have. A
    sequence with more of them has no draft until later steps have computed the rest.
    """

    kinds: ClassVar[dict[str, float]] = {DRAFT_MODEL: 0.6}

    def __init__(self, fd_config: FDConfig, model: GreedyModel | None) -> None:
        if model is None:
            raise ValueError(f"method: {DRAFT_MODEL} needs a draft_model_config in the configuration")
        scheduler = fd_config.scheduler_config
        self.passes = model.warmed_up()
        self._model = model
        self._budget = scheduler.max_num_batched_tokens
        self._cache = DraftCache(
            model, fd_config.cache_config.block_size, scheduler.max_num_seqs, fd_config.model_config.max_model_len
        )
        self._drafts: dict[int, list[int]] = {}

    def leave(self, slot: int) -> None:
        """Clears a slot."""
        self._cache.leave(slot)
        self._drafts.pop(slot, None)

    def prepare(self, wanted: Iterable[tuple[Sequence, int]]) -> None:
        """See `Drafter`."""
        self._drafts = {}
        # Positions after the model's context have no embedding.
        fitting = [(each, min(count, self._model.max_model_len + 1 - each.num_tokens)) for each, count in wanted]
        ready = self._catch_up([(sequence, count) for sequence, count in fitting if count > 0])
        for place in range(1, max((count for _, count in ready), default=0)):
            going = [sequence for sequence, count in ready if count > place]
            self._append(going, [self._after(sequence) for sequence in going])
        for sequence, _ in ready:
            self._cache.drafted(sequence, self._drafts[sequence.slot][:-1])

    def draft(self, sequence: Sequence, count: int) -> Draft | None:
        """See `Drafter`."""
        tokens = self._drafts.get(sequence.slot, [])[:count]
        return Draft(tokens, DRAFT_MODEL) if tokens else None

    def _catch_up(self, wanted: list[tuple[Sequence, int]]) -> list[tuple[Sequence, int]]:
        """Computes tokens of sequences, those with few missing ones first; returns the sequences that miss none."""
        # Before any is computed: blocks that this pass computes have no keys yet.
        starts = {sequence.slot: self._cache.known(sequence) for sequence, _ in wanted}
        left, chunks, ready = self._budget, [], []
        for sequence, count in sorted(wanted, key=lambda each: each[0].num_tokens - starts[each[0].slot]):
            start = starts[sequence.slot]
            end = min(sequence.num_tokens, start + left)
            if end == start:
                break
            left -= end - start
            tokens, ends = sequence.token_ids_between(start, end), end == sequence.num_tokens
            chunks.append(SequenceChunk(np.array(tokens), start, self._cache.table(sequence), int(ends)))
            self._cache.computed(sequence, end)
            if ends:
                ready.append((sequence, count))
        if chunks:
            self._append([sequence for sequence, _ in ready], chunks)
        return ready

    def _append(self, sequences: list[Sequence], chunks: list[SequenceChunk]) -> None:
        """Computes the chunks, whose outputs are the next draft tokens of the sequences."""
        for sequence, token in zip(sequences, self._model.next_tokens(chunks), strict=True):
            self._drafts.setdefault(sequence.slot, []).append(token)

    def _after(self, sequence: Sequence) -> SequenceChunk:
        """Returns the chunk of a sequence's last draft token."""
        drafted = self._drafts[sequence.slot]
        start = sequence.num_tokens + len(drafted) - 1
        return SequenceChunk(np.array(drafted[-1:]), start, self._cache.table(sequence), 1)
