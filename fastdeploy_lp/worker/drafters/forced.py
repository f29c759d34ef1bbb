"""Drafts of forced tokens: tokens that a request's logits processors or its grammar will force."""

from __future__ import annotations

from itertools import takewhile
from typing import ClassVar

from fastdeploy_lp.config.speculation import FORCED, GRAMMAR
from fastdeploy_lp.logits_processor.chain.forced_tokens import ForcedTokens
from fastdeploy_lp.worker.drafters.drafter import NEVER, Draft, Drafter
from fastdeploy_lp.worker.logits_mask import LogitsMask
from fastdeploy_lp.worker.sequence import Sequence


class ForcedDrafter(Drafter):
    """Takes the rest of the phrase that a processor writes, up to a token that ends the sequence."""

    kinds: ClassVar[dict[str, float]] = {FORCED: 0.98}

    def __init__(self, forced: ForcedTokens) -> None:
        self._forced = forced
        forced.listen(self._wake)

    def begin_step(self, step: int, least_share: float) -> bool:  # noqa: ARG002
        """See `Drafter`: True if a request has a processor that forces tokens, in the phase of its text."""
        if not self._forced:
            self.next_step = NEVER
        return bool(self._forced)

    def _wake(self) -> None:
        self.next_step = 0

    def draft(self, sequence: Sequence, count: int) -> Draft | None:
        """See `Drafter`."""
        tokens = self._forced.after(sequence.slot, sequence.output_token_ids, count)
        if not tokens:
            return None
        # The row before the last token yields it; a row after it would yield nothing.
        tokens = list(takewhile(lambda token: token not in sequence.stop_token_ids, tokens))
        return Draft(tokens, FORCED) if tokens else None


class GrammarDrafter(Drafter):
    """Takes the tokenization of the only text that may follow, such as the keys of a JSON schema."""

    kinds: ClassVar[dict[str, float]] = {GRAMMAR: 0.95}

    def __init__(self, mask: LogitsMask) -> None:
        self._mask = mask
        # Slots whose sequences have a grammar.
        self._slots: set[int] = set()
        self.next_step = NEVER

    def enter(self, sequence: Sequence) -> None:
        """See `Drafter`."""
        if sequence.grammar is not None:
            self._slots.add(sequence.slot)
            self.next_step = 0

    def leave(self, slot: int) -> None:
        """See `Drafter`."""
        self._slots.discard(slot)
        self.next_step = 0 if self._slots else NEVER

    def draft(self, sequence: Sequence, count: int) -> Draft | None:
        """See `Drafter`."""
        forced = self._mask.forced(sequence.slot)
        return Draft(forced[:count], GRAMMAR) if forced else None
