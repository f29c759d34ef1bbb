"""Admission of work to processes: a turn at first, then one of the few places for slow work."""

from __future__ import annotations

from collections import Counter

from fastdeploy_lp.engine.turns import Turns


class SlowPlaces:
    """Places for slow work: `most` in all, `most_each` per kind."""

    def __init__(self, most: int, most_each: int) -> None:
        self._most = most
        self._most_each = most_each
        self._taken: Counter[str] = Counter()

    @property
    def num_taken(self) -> int:
        """Places in use."""
        return self._taken.total()

    def take(self, kind: str) -> bool:
        """Takes a place; returns False if none is left."""
        if self.num_taken >= self._most or self._taken[kind] >= self._most_each:
            return False
        self._taken[kind] += 1
        return True

    def give_back(self, kind: str) -> None:
        """Frees a place of this kind."""
        self._taken[kind] -= 1


class Lane:
    """A caller's turn, exchanged for a slow place when its work takes long."""

    def __init__(self, turns: Turns, slow_places: SlowPlaces) -> None:
        self._turns = turns
        self._slow_places = slow_places
        self._kind: str | None = None

    @property
    def is_slow(self) -> bool:
        """True once the turn is exchanged."""
        return self._kind is not None

    def become_slow(self, kind: str = "") -> bool:
        """Exchanges the turn for a slow place of this kind, once; returns False if none is free."""
        if self.is_slow:
            return True
        if not self._slow_places.take(kind):
            return False
        self._kind = kind
        self._turns.give_back()
        return True

    def leave(self) -> None:
        """Releases the turn or the place."""
        if self._kind is None:
            self._turns.give_back()
        else:
            self._slow_places.give_back(self._kind)
