"""The rows of one order of processors, with instances of their own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fastdeploy_lp.logits_processor.chain_entry import ChainEntry
from fastdeploy_lp.logits_processor.selection import Selection

Order = tuple[str, ...] | None
"""Processor names in the order a request gave, None for the declared order."""


class ChainGroup:
    """Entries in order, and the slots whose requests want them so.

    `stop_flags` [S, 1] are this step's, True for slots of other groups.
    """

    def __init__(self, entries: Sequence[ChainEntry]) -> None:
        self.entries = tuple(entries)
        self.slots: set[int] = set()
        # True while its processors know of requests: they hear once more when the last one has left.
        self.followed = False
        self.stop_flags: NDArray[np.bool_] = np.ones((0, 1), bool)

    def enter(self, slot: int, selection: Selection, *, again: bool = False) -> None:
        """A request takes the slot, perhaps not for the first time."""
        self.slots.add(slot)
        for entry in self.entries:
            entry.enter(slot, selection, again=again)

    def leave(self, slot: int) -> None:
        """The slot is empty again."""
        self.slots.discard(slot)
        for entry in self.entries:
            entry.leave(slot)

    def own_stop_flags(self, stop_flags: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """`stop_flags` with every slot of another group stopped."""
        own = np.ones_like(stop_flags)
        slots = sorted(self.slots)
        own[slots] = stop_flags[slots]
        return own

    def stop_flags_for(self, entry: ChainEntry) -> NDArray[np.bool_]:
        """This step's as the entry sees them: one that works on its users' rows alone sees all other slots stopped."""
        if not entry.sees_users_only:
            return self.stop_flags
        own = np.ones_like(self.stop_flags)
        slots = sorted(entry.view.using)
        own[slots] = self.stop_flags[slots]
        return own

    def rows_for(self, entry: ChainEntry) -> NDArray[np.int64] | None:
        """The rows of the group's logits that the entry sees, int64 [n]; None for all of them."""
        if not entry.sees_users_only:
            return None
        active = self.active_slots()
        rows = np.flatnonzero(np.isin(active, sorted(entry.view.using)))
        return None if len(rows) == len(active) else rows

    def active_slots(self) -> NDArray[np.int64]:
        """The slots of this group that have a row this step, ascending."""
        return np.flatnonzero(~self.stop_flags[:, 0])

    def count_rows(self, slots: set[int]) -> int:
        """How many of these slots have a row this step: not one whose prompt is not read to its end."""
        if not slots:
            return 0
        active = self.active_slots()
        return len(slots) if len(active) == len(self.slots) else len(slots.intersection(active.tolist()))
