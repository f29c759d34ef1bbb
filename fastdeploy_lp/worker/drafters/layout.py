"""Drafts of the marks and white space between the values of a guided answer, such as JSON's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from fastdeploy_lp.config.speculation import LAYOUT
from fastdeploy_lp.worker.drafters.drafter import NEVER, Draft, Drafter
from fastdeploy_lp.worker.drafters.layouts import Layouts
from fastdeploy_lp.worker.sequence import Sequence


@dataclass(slots=True)
class _Read:
    """A guided sequence in a slot. known: its output tokens that were learned from, or came before a preemption."""

    sequence: Sequence
    known: int


class LayoutDrafter(Drafter):
    """Writes marks and white space as the client's guided answers last did: after `",` a line break and its indent.

    A model mostly writes all of its JSON in one style. Requests without speculation neither have drafts nor are learned
    from. layouts: also for drafts of other sources that go on. allows: see `LogitsMask.allows`.
    """

    kinds: ClassVar[dict[str, float]] = {LAYOUT: 0.7}

    def __init__(self, layouts: Layouts, allows: Callable[[int, int], bool]) -> None:
        self.layouts = layouts
        self._allows = allows
        self._by_slot: dict[int, _Read] = {}
        self.next_step = NEVER

    def enter(self, sequence: Sequence) -> None:
        """See `Drafter`."""
        if sequence.grammar is not None and sequence.params.speculative:
            self._by_slot[sequence.slot] = _Read(sequence, len(sequence.output_token_ids))
            self.next_step = 0

    def leave(self, slot: int) -> None:
        """Clears a slot, after its last tokens were learned from."""
        read = self._by_slot.pop(slot, None)
        if read is not None:
            self._learn(read)
        self.next_step = 0 if self._by_slot else NEVER

    def begin_step(self, step: int, least_share: float) -> bool:  # noqa: ARG002
        """See `Drafter`: learns from the tokens of the last step."""
        for read in self._by_slot.values():
            self._learn(read)
        return True

    def draft(self, sequence: Sequence, count: int) -> Draft | None:
        """See `Drafter`."""
        if sequence.slot not in self._by_slot:
            return None
        tokens = self.layouts.of(sequence.client).run(sequence.output_token_ids[-2:], count)
        return Draft(tokens, LAYOUT) if tokens and self._allows(sequence.slot, tokens[0]) else None

    def _learn(self, read: _Read) -> None:
        output = read.sequence.output_token_ids
        if read.known < len(output):
            self.layouts.of(read.sequence.client).learn(output, read.known)
            read.known = len(output)
