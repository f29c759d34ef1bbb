"""Drafts from earlier text: what followed the last tokens before (prompt look-up)."""

from __future__ import annotations

from typing import ClassVar

from fastdeploy_lp.config.speculation import Speculation
from fastdeploy_lp.worker.drafters.drafter import Draft, Drafter
from fastdeploy_lp.worker.drafters.token_index import TokenIndex
from fastdeploy_lp.worker.sequence import Sequence

SHORT, LONG = "ngram", "ngram_long"
# No token has this id.
PREDICTION_ENDS = -1


class NgramDrafter(Drafter):
    """Repeats the text after the longest match of a sequence's last tokens in its prediction, prompt
    and output.

    Source: Saxena, "Prompt Lookup Decoding", 2023. An index is built when a sequence first needs a draft.
    """

    kinds: ClassVar[dict[str, float]] = {SHORT: 0.4, LONG: 0.8}

    def __init__(self, settings: Speculation) -> None:
        self._shortest, self._longest = settings.prompt_lookup_min, settings.prompt_lookup_max
        # Of each slot the index, and the number of its tokens before the sequence's own.
        self._by_slot: dict[int, tuple[TokenIndex, int]] = {}

    def leave(self, slot: int) -> None:
        """Clears a slot."""
        self._by_slot.pop(slot, None)

    def draft(self, sequence: Sequence, count: int) -> Draft | None:
        """See `Drafter`."""
        index, first = self._by_slot.get(sequence.slot) or self._new_index(sequence)
        known = len(index) - first
        if known < sequence.num_tokens:
            index.extend(sequence.token_ids_between(known, sequence.num_tokens))
        position, length = index.match()
        if not length:
            return None
        tokens = index.after(position, count)
        if PREDICTION_ENDS in tokens:
            tokens = tokens[: tokens.index(PREDICTION_ENDS)]
        return Draft(tokens, LONG if length == self._longest else SHORT) if tokens else None

    def _new_index(self, sequence: Sequence) -> tuple[TokenIndex, int]:
        index = TokenIndex(self._shortest, self._longest)
        if isinstance(sequence.params.prediction, list):
            index.extend([*sequence.params.prediction, PREDICTION_ENDS])
        self._by_slot[sequence.slot] = (index, len(index))
        return self._by_slot[sequence.slot]
