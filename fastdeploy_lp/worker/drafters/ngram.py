"""Drafts from earlier text: what followed the last tokens before (prompt look-up)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple

from fastdeploy_lp.config.speculation import Speculation
from fastdeploy_lp.worker.drafters.drafter import NEVER, Draft, Drafter, MatchKinds
from fastdeploy_lp.worker.drafters.token_index import TokenIndex
from fastdeploy_lp.worker.sequence import Sequence as WorkerSequence

MATCHES = MatchKinds("ngram")
# No token has this id.
PREDICTION_ENDS = -1


class Pace(NamedTuple):
    """The frequency of looks: halved after each `patience` looks in vain, at most `halvings` times."""

    patience: int
    halvings: int


# CHEAP: drafts that are seldom right pay off, too. DEAR: they do not. STEADY: a look in each step.
CHEAP, DEAR, STEADY = Pace(6, 3), Pace(3, 4), Pace(1, 0)
SELDOM_RIGHT = MATCHES.shares[MATCHES.one]


@dataclass(slots=True)
class _Text:
    """The index of a sequence's prediction, prompt, and first `indexed` output tokens; None before the first look.

    step, num_output, guess: of the last look, the step, the number of output tokens, and the token that was drafted, if
    any. in_vain: looks in a row that did not pay off. next_look: the first step of the next look.
    """

    index: TokenIndex | None = None
    indexed: int = 0
    step: int = 0
    num_output: int = 0
    guess: int = PREDICTION_ENDS
    in_vain: int = 0
    next_look: int = 0

    def looked(self, output: Sequence[int], guess: int, step: int, pace: Pace) -> None:
        """Counts the last look, and keeps this one."""
        right = self.num_output < len(output) and output[self.num_output] == self.guess
        verified = len(output) - self.num_output > step - self.step
        self.in_vain = 0 if right and (verified or pace is not DEAR) else self.in_vain + 1
        self.step, self.num_output, self.guess = step, len(output), guess

    def wait(self, pace: Pace) -> None:
        """Sets the next look.

        Looks at different texts fall into the same steps: the first of a step takes longer than all others.
        """
        period = 1 << min(self.in_vain // pace.patience, pace.halvings)
        self.next_look = (self.step // period + 1) * period


class NgramDrafter(Drafter):
    """Repeats the text after the longest match of a sequence's last tokens in its prediction, prompt and output.

    Source: Saxena, "Prompt Lookup Decoding", 2023. An index is built when a sequence first needs a draft. With adaptive
    drafts, it looks less often at a sequence after many looks that did not pay off. Matches before a token that the
    sequence's grammar rules out do not count.

    allows: see `LogitsMask.allows`.
    """

    kinds: ClassVar[dict[str, float]] = MATCHES.shares

    def __init__(self, settings: Speculation, allows: Callable[[int, int], bool]) -> None:
        self._allows = allows
        self._shortest, self._longest = settings.prompt_lookup_min, settings.prompt_lookup_max
        self._adaptive = settings.adaptive
        self._pace = STEADY
        self._texts: dict[int, _Text] = {}
        # Number of this step; texts that it has yet to look at, and the first next look at the others.
        self._step = self._due = 0
        self._later = NEVER

    def enter(self, sequence: WorkerSequence) -> None:
        """See `Drafter`."""
        if sequence.params.speculative:
            self._texts[sequence.slot] = _Text()
            self.next_step = 0

    def begin_step(self, step: int, least_share: float) -> bool:
        """See `Drafter`: True if a text is looked at in this step."""
        self._step = step
        if self._adaptive:
            self._pace = CHEAP if least_share < SELDOM_RIGHT else DEAR
        later = [text.next_look for text in self._texts.values() if text.next_look > step]
        self._due, self._later = len(self._texts) - len(later), min(later, default=NEVER)
        self._settle()
        return self._due > 0

    def leave(self, slot: int) -> None:
        """Clears a slot."""
        self._texts.pop(slot, None)

    def draft(self, sequence: WorkerSequence, count: int) -> Draft | None:
        """See `Drafter`."""
        text = self._texts[sequence.slot]
        if text.next_look > self._step:
            return None
        if text.index is None:
            text.index = self._new_index(sequence)
        index, output = text.index, sequence.output_token_ids
        index.extend(output[text.indexed :])
        text.indexed = len(output)
        tokens: list[int] = []
        guided = sequence.grammar is not None
        position, length = index.match(partial(self._follows, sequence.slot) if guided else None)
        if length:
            tokens = index.after(position, count)
            if PREDICTION_ENDS in tokens:
                tokens = tokens[: tokens.index(PREDICTION_ENDS)]
        text.looked(output, tokens[0] if tokens else PREDICTION_ENDS, self._step, self._pace)
        # After such a match a draft is mostly right, and known to be so only at the next look.
        text.wait(STEADY if length == self._longest else self._pace)
        self._due, self._later = self._due - 1, min(self._later, text.next_look)
        self._settle()
        if not tokens:
            return None
        return Draft(tokens, MATCHES.of(length, self._longest))

    def _settle(self) -> None:
        # A text that no step has looked at, since drafts were not wanted, is looked at in the next one.
        self.next_step = 0 if self._due else self._later

    def _follows(self, slot: int, token: int) -> bool:
        return token != PREDICTION_ENDS and self._allows(slot, token)

    def _new_index(self, sequence: WorkerSequence) -> TokenIndex:
        index = TokenIndex(self._shortest, self._longest)
        if isinstance(sequence.params.prediction, list):
            index.extend([*sequence.params.prediction, PREDICTION_ENDS])
        index.extend(sequence.prompt_token_ids)
        return index
