"""Turns of the sequences whose clients have uploaded processors, which thus hold up other sequences little."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping

from fastdeploy_lp.stats import ProcessorStats
from fastdeploy_lp.worker.sequence import Sequence


class UploadPace:
    """Limits the time that uploaded processors add to steps while sequences without any generate.

    A sequence has a turn in a step that samples its token, in which its processors run; in other steps it is held.
    Every step earns time; while any is left, sequences have turns, the one whose last turn is longest ago first. So the
    processors add no more than the share on average, and to one step no more than that and one turn. Without other
    sequences, all have a turn in every step.

    share: of a step's time without these processors.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        # Seconds earned and not used; below 0 after a turn that took longer.
        self._saved = 0.0
        # Names of the uploads by slot, in the order of turns.
        self._names: dict[int, tuple[str, ...]] = {}
        # In this step: the turns, and the seconds left for further ones, None without a limit.
        self._turns: dict[int, tuple[str, ...]] = {}
        self._left: float | None = None
        # By name: the processor's seconds until now, and those of a turn.
        self._counted: dict[str, float] = {}
        self._costs: dict[str, float] = {}

    def enter(self, sequence: Sequence) -> None:
        """Registers a sequence in its slot."""
        if sequence.selection.brought:
            self._names[sequence.slot] = tuple(sequence.selection.brought)

    def leave(self, slot: int) -> None:
        """Clears a slot; does nothing for a slot without uploaded processors."""
        self._names.pop(slot, None)

    def begin(self, generating: Iterable[int]) -> None:
        """Begins a step: these slots have one token left to compute, and take turns while there is time."""
        ready: set[int] = set()
        beside_others = False
        for slot in generating:
            if slot in self._names:
                ready.add(slot)
            else:
                beside_others = True
                if not self._names:
                    break
        self._turns, self._left = {}, self._saved if beside_others else None
        for slot in self._names:
            if slot in ready and not self.holds(slot):
                self.take_turn(slot)

    def holds(self, slot: int) -> bool:
        """Returns True if the slot has no turn in this step, and can take none."""
        return self._left is not None and self._left < 0 and slot in self._names and slot not in self._turns

    def take_turn(self, slot: int) -> None:
        """Adds a turn of the slot to this step; does nothing for a slot without uploaded processors."""
        names = self._names.get(slot)
        if names is None:
            return
        self._turns[slot] = names
        if self._left is not None:
            # A processor's first turn, whose cost is unknown, is the last one of a step.
            self._left -= sum(self._costs.get(name, math.inf) for name in names)

    def took(self, seconds: float, stats: Mapping[str, ProcessorStats]) -> None:
        """Records the duration of the step; `stats` has the seconds of all processors until now."""
        if not self._turns and not self._names:
            return
        spent = self._count(stats)
        # Turns of a step without other sequences are free: they hold up nobody.
        if self._left is not None:
            earned = self._share * max(seconds - spent, 0.0)
            self._saved = min(self._saved + earned - spent, earned)
        for slot in self._turns:
            if slot in self._names:
                self._names[slot] = self._names.pop(slot)

    def _count(self, stats: Mapping[str, ProcessorStats]) -> float:
        """Returns the seconds of the step's turns, and notes those of a turn of each processor."""
        spent = 0.0
        for name, turns in Counter(name for names in self._turns.values() for name in names).items():
            # An upload that is gone fails its requests and has no statistics.
            total, counted = stats[name].seconds if name in stats else 0.0, self._counted.get(name, 0.0)
            # With less than before, the chain has forgotten the upload in between, and counts anew.
            seconds = total - counted if total >= counted else total
            self._counted[name], self._costs[name] = total, seconds / turns
            spent += seconds
        if len(self._counted) > len(stats):
            self._counted = {name: total for name, total in self._counted.items() if name in stats}
            self._costs = {name: cost for name, cost in self._costs.items() if name in stats}
        return spent
