"""Drafts of the tokens that a request's logits processors will force."""

from __future__ import annotations

from itertools import takewhile
from typing import ClassVar

from fastdeploy_lp.logits_processor.chain.forced_tokens import ForcedTokens
from fastdeploy_lp.worker.drafters.drafter import Draft, Drafter
from fastdeploy_lp.worker.sequence import Sequence

FORCED = "forced"


class ForcedDrafter(Drafter):
    """Takes the rest of the phrase that a processor writes, up to a token that ends the sequence."""

    kinds: ClassVar[dict[str, float]] = {FORCED: 0.98}

    def __init__(self, forced: ForcedTokens) -> None:
        self._forced = forced

    def draft(self, sequence: Sequence, count: int) -> Draft | None:
        """See `Drafter`."""
        tokens = self._forced.after(sequence.slot, sequence.output_token_ids, count)
        # The row before the last token yields it; a row after it would yield nothing.
        tokens = list(takewhile(lambda token: token not in sequence.stop_token_ids, tokens))
        return Draft(tokens, FORCED) if tokens else None
