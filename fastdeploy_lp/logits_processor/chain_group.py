"""The rows of one order of processors, with separate instances."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fastdeploy_lp.logits_processor.chain_entry import ChainEntry
from fastdeploy_lp.logits_processor.selection import Selection

Order = tuple[str, ...] | None
"""Processor names in a request's order, None for the declared order."""


class ChainGroup:
    """Entries in order, and the slots whose requests use this order.

    `stop_flags` [S, 1] are this step's, True for slots of other groups.
    """

    def __init__(self, entries: Sequence[ChainEntry]) -> None:
        self.entries = tuple(entries)
        self.slots: set[int] = set()
        # True while its processors know of requests: they are updated once more after the last one has left.
        self.followed = False
        self.stop_flags: NDArray[np.bool_] = np.ones((0, 1), bool)

    def enter(self, slot: int, selection: Selection, *, again: bool = False) -> None:
        """Puts a request into the slot; `again` if it is counted already."""
        self.slots.add(slot)
        for entry in self.entries:
            entry.enter(slot, selection, again=again)

    def leave(self, slot: int) -> None:
        """Empties the slot."""
        self.slots.discard(slot)
        for entry in self.entries:
            entry.leave(slot)

    def own_stop_flags(self, stop_flags: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Returns `stop_flags` with every slot of other groups stopped."""
        own = np.ones_like(stop_flags)
        slots = sorted(self.slots)
        own[slots] = stop_flags[slots]
        return own

    def stop_flags_for(self, entry: ChainEntry) -> NDArray[np.bool_]:
        """Returns this step's stop flags as the entry sees them.

        An entry that sees only its users' rows sees all other slots stopped.
        """
        if not entry.sees_users_only:
            return self.stop_flags
        own = np.ones_like(self.stop_flags)
        slots = sorted(entry.view.using)
        own[slots] = self.stop_flags[slots]
        return own

    def rows_for(self, entry: ChainEntry) -> NDArray[np.int64] | None:
        """Returns the rows of the group's logits that the entry sees, int64 [n]; None for all rows."""
        if not entry.sees_users_only:
            return None
        active = self.active_slots()
        rows = np.flatnonzero(np.isin(active, sorted(entry.view.using)))
        return None if len(rows) == len(active) else rows

    def active_slots(self) -> NDArray[np.int64]:
        """Returns the slots of this group that have a row in this step, ascending."""
        return np.flatnonzero(~self.stop_flags[:, 0])

    def count_rows(self, slots: set[int]) -> int:
        """Returns the number of these slots with a row in this step; a slot with an unfinished prompt has none."""
        if not slots:
            return 0
        active = self.active_slots()
        return len(slots) if len(active) == len(self.slots) else len(slots.intersection(active.tolist()))
