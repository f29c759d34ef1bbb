"""Drafts from earlier text: what followed the last tokens before (prompt look-up)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from fastdeploy_lp.config.speculation import Speculation
from fastdeploy_lp.worker.drafters.drafter import Draft, Drafter, MatchKinds
from fastdeploy_lp.worker.drafters.token_index import TokenIndex
from fastdeploy_lp.worker.sequence import Sequence as WorkerSequence

MATCHES = MatchKinds("ngram")
# No token has this id.
PREDICTION_ENDS = -1
# Looks in vain in a row after which one more place is left out before the next look, and the most places left out.
PATIENCE, MOST_LEFT_OUT = 8, 3


@dataclass(slots=True)
class _Text:
    """The index of a sequence's prediction, prompt, and first `indexed` output tokens.

    looked_at, guess: the number of output tokens at the last look, and the token that was drafted, if any. in_vain:
    looks in a row without a right one. look_from: the number of output tokens at the next look.
    """

    index: TokenIndex
    indexed: int = 0
    looked_at: int = 0
    guess: int = PREDICTION_ENDS
    in_vain: int = 0
    look_from: int = 0

    def looked(self, output: Sequence[int], guess: int, most_left_out: int) -> None:
        """Compares the last guess with the token that came, and sets the next look."""
        right = self.looked_at < len(output) and output[self.looked_at] == self.guess
        self.in_vain = 0 if right else self.in_vain + 1
        self.looked_at, self.guess = len(output), guess
        self.look_from = len(output) + 1 + min(self.in_vain // PATIENCE, most_left_out)


class NgramDrafter(Drafter):
    """Repeats the text after the longest match of a sequence's last tokens in its prediction, prompt and output.

    Source: Saxena, "Prompt Lookup Decoding", 2023. An index is built when a sequence first needs a draft. With adaptive
    drafts, it looks less often in a sequence where it was wrong for long.
    """

    kinds: ClassVar[dict[str, float]] = MATCHES.shares

    def __init__(self, settings: Speculation) -> None:
        self._shortest, self._longest = settings.prompt_lookup_min, settings.prompt_lookup_max
        self._most_left_out = MOST_LEFT_OUT if settings.adaptive else 0
        self._texts: dict[int, _Text] = {}

    def leave(self, slot: int) -> None:
        """Clears a slot."""
        self._texts.pop(slot, None)

    def draft(self, sequence: WorkerSequence, count: int) -> Draft | None:
        """See `Drafter`."""
        text = self._texts.get(sequence.slot) or self._new_text(sequence)
        output = sequence.output_token_ids
        if len(output) < text.look_from:
            return None
        text.index.extend(output[text.indexed :])
        text.indexed = len(output)
        tokens: list[int] = []
        position, length = text.index.match()
        if length:
            tokens = text.index.after(position, count)
            if PREDICTION_ENDS in tokens:
                tokens = tokens[: tokens.index(PREDICTION_ENDS)]
        text.looked(output, tokens[0] if tokens else PREDICTION_ENDS, self._most_left_out)
        if not tokens:
            return None
        return Draft(tokens, MATCHES.of(length, self._longest))

    def _new_text(self, sequence: WorkerSequence) -> _Text:
        index = TokenIndex(self._shortest, self._longest)
        if isinstance(sequence.params.prediction, list):
            index.extend([*sequence.params.prediction, PREDICTION_ENDS])
        index.extend(sequence.prompt_token_ids)
        text = self._texts[sequence.slot] = _Text(index)
        return text
