"""The groups of a chain: the main one, and one for each order of requests."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fastdeploy_lp.logits_processor.chain.entry import ChainEntry
from fastdeploy_lp.logits_processor.declared import Selection
from fastdeploy_lp.logits_processor.stages import LOGITS, Stage

Order = tuple[str, ...] | None
"""Processor names in a request's order, None for the declared order."""


class ChainGroup:
    """Entries in order, and the slots whose requests use this order.

    `stop_flags` [S, 1] are this step's, True for slots of other groups.
    """

    def __init__(self, entries: Sequence[ChainEntry]) -> None:
        self.entries = tuple(entries)
        # Before penalties and temperature, and after the filters.
        self.before_filters = tuple(entry for entry in entries if entry.stage == LOGITS)
        self.after_filters = tuple(entry for entry in entries if entry.stage != LOGITS)
        self.slots: set[int] = set()
        # True while its processors know of requests: they are updated once more after the last one has left.
        self.followed = False
        self.stop_flags: NDArray[np.bool_] = np.ones((0, 1), bool)
        # True if they have not changed since the last step; finding the active slots takes longer than a small edit.
        self.same_rows = False
        self._flags = b""
        self._active = np.empty(0, np.int64)
        # [S, 1], True for slots that take the most likely token; kept for the entries after the filters.
        self.greedy: NDArray[np.bool_] = np.zeros((0, 1), bool)
        self._seen: dict[ChainEntry, _SeenSlots] = {}

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

    def begin_step(self, stop_flags: NDArray[np.bool_]) -> None:
        """Sets this step's stop flags."""
        flags = stop_flags.tobytes()
        self.stop_flags, self.same_rows = stop_flags, flags == self._flags
        if not self.same_rows:
            self._flags, self._active = flags, np.flatnonzero(~stop_flags[:, 0])
            self._active.flags.writeable = False
        self.followed = bool(self.slots)

    def own_stop_flags(self, stop_flags: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Returns `stop_flags` with every slot of other groups stopped."""
        own = np.ones_like(stop_flags)
        slots = sorted(self.slots)
        own[slots] = stop_flags[slots]
        return own

    def stop_flags_for(self, entry: ChainEntry) -> NDArray[np.bool_]:
        """Returns this step's stop flags as the entry sees them.

        An entry that hides rows sees the slots of all other rows stopped, and one after the filters also the slots that
        take the most likely token.
        """
        return self.stop_flags if _sees_everything(entry) else self._seen_by(entry).stop_flags

    def slots_for(self, entry: ChainEntry) -> NDArray[np.int64]:
        """Returns the slots whose rows the entry sees in this step, int64 [n], ascending."""
        return self.active_slots() if _sees_everything(entry) else self._seen_by(entry).slots

    def _seen_by(self, entry: ChainEntry) -> _SeenSlots:
        by = (self._flags, self.greedy.tobytes(), entry.view.num_changes)
        known = self._seen.get(entry)
        if known is None or known.by != by:
            own = np.ones_like(self.stop_flags)
            own[list(filter(entry.works_on, self.active_slots().tolist()))] = False
            if entry.stage != LOGITS:
                own |= self.greedy
            known = self._seen[entry] = _SeenSlots.of(own, by)
        return known

    def slots_at(self, stage: Stage) -> NDArray[np.int64]:
        """Returns the slots of this group with a row at this stage, int64 [n], ascending."""
        active = self.active_slots()
        return active if stage == LOGITS else active[~self.greedy[active, 0]]

    def rows_for(self, entry: ChainEntry) -> NDArray[np.int64] | None:
        """Returns the rows of the group's logits that the entry sees, int64 [n]; None for all rows."""
        active = self.active_slots()
        rows = np.array([row for row, slot in enumerate(active.tolist()) if entry.works_on(slot)], np.int64)
        return None if len(rows) == len(active) else rows

    def active_slots(self) -> NDArray[np.int64]:
        """Returns the slots of this group that have a row in this step, ascending, as a read-only array."""
        return self._active

    def count_rows(self, entry: ChainEntry) -> int:
        """Returns the number of its users with a row in this step; a slot with an unfinished prompt has none."""
        slots = entry.view.using
        if not slots:
            return 0
        active = self.active_slots() if entry.stage == LOGITS else self.slots_for(entry)
        return len(slots) if len(active) == len(self.slots) else len(slots.intersection(active.tolist()))


def _sees_everything(entry: ChainEntry) -> bool:
    return entry.stage == LOGITS and not entry.hides_rows


@dataclass(frozen=True)
class _SeenSlots:
    """The slots that an entry sees: `stop_flags` [S, 1] and `slots` int64 [n], read-only; they change with `by`."""

    stop_flags: NDArray[np.bool_]
    slots: NDArray[np.int64]
    by: tuple[bytes, bytes, int]

    @classmethod
    def of(cls, stop_flags: NDArray[np.bool_], by: tuple[bytes, bytes, int]) -> _SeenSlots:
        """Finds the slots of these flags, and makes both read-only."""
        slots = np.flatnonzero(~stop_flags[:, 0])
        stop_flags.flags.writeable = slots.flags.writeable = False
        return cls(stop_flags, slots, by)


MAX_ORDERS = 32
"""Maximum of groups besides the main one; each has separate instances of its processors."""

MAX_ORDER_PROCESSORS = 64
"""Maximum of processors in all orders in use: each adds a call to a step, for any number of rows."""


class ChainGroups:
    """Groups by order, kept after their last request for the next request with that order.

    A request claims the group of its order from its arrival to its end, also while it waits for a slot. At
    MAX_ORDERS groups, a new order evicts the least recently used group without claims. Used by one thread.
    """

    def __init__(self, main: ChainGroup) -> None:
        self.main = main
        self._own: OrderedDict[Order, ChainGroup] = OrderedDict()
        self._claims: dict[str, Order] = {}

    def get(self, order: Order) -> ChainGroup | None:
        """Returns the group of an order, None if there is none."""
        return self.main if order is None else self._own.get(order)

    def add(self, order: Order, entries: Iterable[ChainEntry]) -> ChainGroup:
        """Returns the group of an order; creates it from these entries if it does not exist."""
        found = self.get(order)
        if found is not None:
            return found
        # Exceeds MAX_ORDERS only for a request without preparation, which takes its slot now.
        for unused in self._unused()[: max(len(self._own) + 1 - MAX_ORDERS, 0)]:
            del self._own[unused]
        group = self._own[order] = ChainGroup(list(entries))
        return group

    def has_room_for(self, order: Order, building: Collection[Order]) -> bool:
        """Returns True if requests may use this order now, besides the orders in use and in `building`.

        An order of more than MAX_ORDER_PROCESSORS processors is used alone.
        """
        unused = set(self._unused())
        used = {each for each in (*self._own, *building) if each not in unused}
        if order is None or order in used:
            return True
        calls = sum(_calls(each) for each in used) + _calls(order)
        return not used or (len(used) < MAX_ORDERS and calls <= MAX_ORDER_PROCESSORS)

    def claim(self, request_id: str, order: Order) -> None:
        """Keeps the group of this order, if there is one, until the request releases it."""
        if order in self._own:
            self._claims[request_id] = order
            self._own.move_to_end(order)

    def release(self, request_id: str) -> None:
        """Releases the claim of a finished request; does nothing for a request without a claim."""
        self._claims.pop(request_id, None)

    def drop_unused(self, names: Collection[str]) -> set[str]:
        """Drops the groups without requests that have one of these processors; returns the names still in use."""
        unused = set(self._unused())
        for order in [each for each in self._own if each in unused and not set(names).isdisjoint(each or ())]:
            del self._own[order]
        return {name for order in self._own for name in order or ()}.intersection(names)

    @property
    def all(self) -> list[ChainGroup]:
        """All groups."""
        return [self.main, *self._own.values()]

    @property
    def live(self) -> list[ChainGroup]:
        """The main group, groups with requests in slots, and groups not yet updated after their last request left."""
        if not self._own:
            return [self.main]
        return [self.main, *(group for group in self._own.values() if group.slots or group.followed)]

    def _unused(self) -> list[Order]:
        """Returns the orders that no request uses, least recently used first."""
        claimed = set(self._claims.values())
        return [order for order, group in self._own.items() if not group.slots and order not in claimed]


def _calls(order: Order) -> int:
    return len(order or ()) or 1
