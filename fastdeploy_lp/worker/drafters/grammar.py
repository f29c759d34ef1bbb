"""Drafts of the tokens that a request's grammar forces."""

from __future__ import annotations

from typing import ClassVar

from fastdeploy_lp.worker.drafters.drafter import Draft, Drafter
from fastdeploy_lp.worker.logits_mask import LogitsMask
from fastdeploy_lp.worker.sequence import Sequence

FORCED = "grammar"


class GrammarDrafter(Drafter):
    """Takes the tokenization of the only text that may follow, such as the keys of a JSON schema."""

    kinds: ClassVar[dict[str, float]] = {FORCED: 0.95}

    def __init__(self, mask: LogitsMask) -> None:
        self._mask = mask

    def draft(self, sequence: Sequence, count: int) -> Draft | None:
        """See `Drafter`."""
        forced = self._mask.forced(sequence.slot)
        return Draft(forced[:count], FORCED) if forced else None
