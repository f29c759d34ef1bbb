"""Logit edits from request parameters: allowed tokens, penalties, bad words, minimum length."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from paddle import Tensor

from fastdeploy_lp.logits_processor.sequence_state.bad_words import BadWords
from fastdeploy_lp.logits_processor.sequence_state.token_counts import TokenCounts
from fastdeploy_lp.model_executor.ops.row_ops import Int64s, Penalties, RowOps, TokenLists
from fastdeploy_lp.worker.sequence import Sequence

NO_TOKENS = np.empty(0, np.int64)


class RowEdits:
    """Edits of the requests in slots; requests without edits have no state and cost nothing."""

    def __init__(self, ops: RowOps) -> None:
        self._ops = ops
        self._by_slot: dict[int, SlotEdits] = {}

    def enter(self, sequence: Sequence) -> None:
        """Registers a sequence in its slot; builds the state from all of its tokens."""
        edits = SlotEdits(sequence)
        if edits.changes_anything:
            self._by_slot[sequence.slot] = edits

    def leave(self, slot: int) -> None:
        """Clears a slot."""
        self._by_slot.pop(slot, None)

    def works_on(self, slot: int) -> bool:
        """Returns True if the slot's request has edits."""
        return slot in self._by_slot

    def work_on_any(self, slots: NDArray[np.int64]) -> bool:
        """Returns True if any of the slots' requests has edits."""
        return bool(self._by_slot) and not self._by_slot.keys().isdisjoint(slots.tolist())

    def bans_in(self, slot: int) -> list[str]:
        """Returns the fields by which the slot's request rules tokens out."""
        edits = self._by_slot.get(slot)
        return edits.banning_fields if edits is not None else []

    @property
    def any_bans(self) -> bool:
        """True if any request rules tokens out, so that a row may be left without a token."""
        return any(edits.banning_fields for edits in self._by_slot.values())

    def apply(self, logits: Tensor, slots: NDArray[np.int64]) -> None:
        """Edits logits [rows, vocab_size] in place; row r is slot `slots[r]`."""
        if not self._by_slot:
            return
        edited = [(row, self._by_slot[slot]) for row, slot in enumerate(slots.tolist()) if slot in self._by_slot]
        self._allow(logits, edited)
        self._penalize(logits, edited)
        self._ban(logits, edited)

    def _allow(self, logits: Tensor, edited: list[tuple[int, SlotEdits]]) -> None:
        allowing = [(row, edits.allowed) for row, edits in edited if edits.allowed is not None]
        if allowing:
            lists = TokenLists.of([row for row, _ in allowing], [tokens for _, tokens in allowing])
            self._ops.allow_only(logits, lists)

    def _penalize(self, logits: Tensor, edited: list[tuple[int, SlotEdits]]) -> None:
        counted = [(row, edits.counts.catch_up(), edits.rates) for row, edits in edited if edits.counts is not None]
        if counted:
            rows, counts, rates = zip(*counted, strict=True)
            self._ops.penalize(logits, Penalties.of(rows, counts, rates))

    def _ban(self, logits: Tensor, edited: list[tuple[int, SlotEdits]]) -> None:
        banned = [(row, tokens) for row, edits in edited if (tokens := edits.banned()).size]
        if banned:
            lists = TokenLists.of([row for row, _ in banned], [tokens for _, tokens in banned])
            self._ops.ban(logits, lists.row_of_token, lists.tokens)


class SlotEdits:
    """One request's edits."""

    def __init__(self, sequence: Sequence) -> None:
        params = sequence.params
        self.rates = (params.repetition_penalty, params.presence_penalty, params.frequency_penalty)
        self.counts: TokenCounts | None = None
        if self.rates != (1.0, 0.0, 0.0):
            self.counts = TokenCounts(sequence.prompt_token_ids, sequence.output_token_ids)
        self.allowed: Int64s | None = None
        if params.allowed_token_ids is not None:
            self.allowed = np.unique(np.array(params.allowed_token_ids, np.int64))
        self._bad_words = BadWords(params.bad_words_token_ids or [])
        self._has_bad_words = bool(params.bad_words_token_ids)
        self._min_tokens = params.min_tokens
        stops = sorted(sequence.stop_token_ids) if params.min_tokens else []
        self._stop_token_ids = np.array(stops, np.int64)
        self._output = sequence.output_token_ids

    @property
    def banning_fields(self) -> list[str]:
        """Fields of SamplingParams by which the request rules tokens out."""
        named = {
            "allowed_token_ids": self.allowed is not None,
            "bad_words": self._has_bad_words,
            "min_tokens": self._stop_token_ids.size > 0,
        }
        return [name for name, used in named.items() if used]

    @property
    def changes_anything(self) -> bool:
        """True if the request has any edits."""
        return self.counts is not None or bool(self.banning_fields)

    def banned(self) -> Int64s:
        """Returns the tokens that bad words and the minimum length rule out in this step."""
        banned = self._bad_words.banned(self._output) if self._has_bad_words else NO_TOKENS
        if len(self._output) >= self._min_tokens:
            return banned
        return np.concatenate([banned, self._stop_token_ids]) if banned.size else self._stop_token_ids
