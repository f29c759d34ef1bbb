"""The processors of a chain that run after the filters: editing entries first, then drawing ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fastdeploy_lp.logits_processor.chain.entry import ChainEntry
from fastdeploy_lp.logits_processor.chain.faults import ChainFaults
from fastdeploy_lp.logits_processor.chain.groups import ChainGroup
from fastdeploy_lp.logits_processor.chain.rows import put_rows, take_rows
from fastdeploy_lp.logits_processor.chain.trace import ChainTrace, tell_it_did_not_run, tell_it_ran
from fastdeploy_lp.logits_processor.stages import DRAW, FILTERED, Stage
from fastdeploy_lp.logits_processor.vllm_v1 import RowErrors
from fastdeploy_lp.request.trace import FAILED, SKIPPED

if TYPE_CHECKING:
    from paddle import Tensor

Int64s = NDArray[np.int64]


@dataclass(frozen=True)
class Choice:
    """Tokens int64 [n] that a processor chose for the rows of `slots` int64 [n], ascending.

    They are in host memory if a builtin returned an array.
    """

    entry: ChainEntry
    slots: Int64s
    tokens: Tensor | Int64s


@dataclass(frozen=True)
class _Place:
    """An entry with rows at its stage in this step: `slots` int64 [n], ascending."""

    group: ChainGroup
    entry: ChainEntry
    slots: Int64s


class FinalStages:
    """Runs entries on rows of logits as they are drawn from; a step without such a row costs a check of each entry.

    blame: called with a group, an entry and its error when an entry fails as a whole. count: called with a group and
    an entry after the entry's last call in a step.
    """

    def __init__(
        self,
        faults: ChainFaults,
        blame: Callable[[ChainGroup, ChainEntry, Exception], None],
        count: Callable[[ChainGroup, ChainEntry], None],
    ) -> None:
        self._faults = faults
        self._blame = blame
        self._count = count
        self._places: list[_Place] = []
        self._groups: Sequence[ChainGroup] = ()
        self.slots: Int64s = np.empty(0, np.int64)
        # This step: the entries that ran.
        self.ran: set[ChainEntry] = set()

    def begin(self, groups: Sequence[ChainGroup]) -> None:
        """Finds the step's rows after `update_state` of all entries; `slots` belong to the rows, ascending."""
        self._groups = groups
        self._places, self.ran = [], set()
        for group in groups:
            for entry in group.after_filters:
                if entry.has_work and (slots := group.slots_for(entry)).size:
                    self._places.append(_Place(group, entry, slots))
        if self._places or self.slots.size:
            self.slots = _united([place.slots for place in self._places if place.entry not in self._faults.left_out])

    @property
    def is_used(self) -> bool:
        """True if an entry is meant for a request of this step, also for one that takes the most likely token."""
        return any(entry.has_work for group in self._groups for entry in group.after_filters)

    def works_in_step(self, entry: ChainEntry) -> bool:
        """Returns True if the entry has rows in this step."""
        return any(place.entry is entry for place in self._places)

    @property
    def edits(self) -> bool:
        """True if an entry edits rows in this step."""
        return any(place.entry.stage == FILTERED for place in self._places)

    @property
    def only_builtins(self) -> bool:
        """True if no author's code sees rows in this step."""
        return all(place.entry.is_builtin for place in self._places)

    def tell_skipped(self, trace: ChainTrace) -> None:
        """Records the entries that do not run on traced rows, which take the most likely token."""
        for group in self._groups:
            for entry in group.after_filters:
                traced = sorted(group.slots.intersection(trace.slots))
                skipped = [slot for slot in traced if group.greedy[slot, 0] and entry.works_on(slot)]
                if skipped:
                    trace.did_not_run(entry.name, skipped, SKIPPED)

    def edit(self, logits: Tensor, recompute: Callable[[], Tensor], trace: ChainTrace | None) -> Tensor:
        """Returns logits [slots, vocab_size] after the entries that edit them.

        recompute: returns the original logits again, for use after an entry failed half way.
        """
        while True:
            left_out = len(self._faults.left_out)
            result = self._edit_once(logits, trace)
            if result is not None and len(self._faults.left_out) == left_out:
                break
            logits = recompute()
            if trace is not None:
                trace.restart()
        for place in self._at(FILTERED):
            self._count(place.group, place.entry)
        return result

    def draw(self, logits: Tensor, uniforms: NDArray[np.float32], trace: ChainTrace | None) -> list[Choice]:
        """Returns the choices of the entries that draw from logits [slots, vocab_size]; `uniforms` [slots]."""
        choices = []
        for place in self._at(DRAW):
            if place.entry in self._faults.left_out:
                self._leave_out(place, trace)
                continue
            # An author's code may write to its rows, and its choice is compared with them afterwards.
            if place.entry.is_builtin and len(place.slots) == len(self.slots):
                part, own = logits, uniforms
            else:
                rows = np.searchsorted(self.slots, place.slots)
                part, own = take_rows(logits, rows), uniforms[rows]
            try:
                tokens = place.entry.draw(part, own)
            except RowErrors as error:
                self._faults.rows_failed(place.group, place.entry, error)
                continue
            except Exception as error:  # noqa: BLE001 - an author's code may raise anything
                self._blame(place.group, place.entry, error)
                self._leave_out(place, trace)
                continue
            self._tell_it_ran(place, logits, trace)
            choices.append(Choice(place.entry, place.slots, tokens))
            self._count(place.group, place.entry)
        return choices

    def report_illegal(self, choice: Choice, place: int, token: int, vocab_size: int) -> None:
        """Handles a chosen token that cannot be: out of the vocabulary, or of probability 0."""
        reason = f"draw chose token {token}, whose probability in the row is 0"
        if not 0 <= token < vocab_size:
            reason = f"draw chose token {token}; token ids are 0 to {vocab_size - 1}"
        self._faults.request_failed(choice.entry, int(choice.slots[place]), ValueError(reason))

    def ran_on(self, slot: int) -> list[ChainEntry]:
        """Returns the entries that edited the slot's row in this step, in their order."""
        return [place.entry for place in self._at(FILTERED) if place.entry in self.ran and slot in place.slots]

    def edit_again(self, entry: ChainEntry, logits: Tensor) -> Tensor:
        """Returns logits [slots, vocab_size] after one more call of an entry that edits; raises its errors."""
        place = next(each for each in self._at(FILTERED) if each.entry is entry)
        return self._applied(place, logits)

    def _at(self, stage: Stage) -> list[_Place]:
        return [place for place in self._places if place.entry.stage == stage]

    def _edit_once(self, logits: Tensor, trace: ChainTrace | None) -> Tensor | None:
        self.ran = set()
        for place in self._at(FILTERED):
            if place.entry in self._faults.left_out:
                self._leave_out(place, trace)
                continue
            try:
                logits = self._applied(place, logits)
            except RowErrors as error:
                if not self._faults.rows_failed(place.group, place.entry, error):
                    return None
            except Exception as error:  # noqa: BLE001 - an author's code may raise anything
                self._blame(place.group, place.entry, error)
                return None
            self._tell_it_ran(place, logits, trace)
        return logits

    def _applied(self, place: _Place, logits: Tensor) -> Tensor:
        rows = np.searchsorted(self.slots, place.slots)
        if len(rows) == len(self.slots):
            return place.entry.apply(logits)
        put_rows(logits, rows, place.entry.apply(take_rows(logits, rows)))
        return logits

    def _tell_it_ran(self, place: _Place, logits: Tensor, trace: ChainTrace | None) -> None:
        self.ran.add(place.entry)
        if trace is not None:
            tell_it_ran(trace, place.group, place.entry, logits, self.slots)

    def _leave_out(self, place: _Place, trace: ChainTrace | None) -> None:
        if trace is not None:
            tell_it_did_not_run(trace, place.group, place.entry, FAILED)


def _united(slots: Sequence[Int64s]) -> Int64s:
    """Returns the slots of several places, ascending."""
    if len(slots) == 1:
        return slots[0]
    return np.unique(np.concatenate(slots)) if slots else np.empty(0, np.int64)
