"""Counters of each processor, counted in the worker and reported to the API process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

OK, QUARANTINED = "ok", "quarantined"


class ShadowStats(msgspec.Struct):
    """Counters of a processor in shadow since the worker started.

    tokens: tokens that it was tried on. changed: tokens that it would have changed. faults: its failures, and steps in
    which it took longer than its time budget. seconds, requests, state, last_error: as in the chain.
    """

    tokens: int = 0
    changed: int = 0
    faults: int = 0
    seconds: float = 0.0
    requests: int = 0
    state: str = OK
    last_error: str | None = None


class ProcessorStats(msgspec.Struct):
    """Counters of one declared processor since the worker started.

    seconds: time spent in its `update_state` and `apply`. rows: rows it was used on, summed over steps. requests:
    requests that used it. faults: steps in which it failed. slow_steps: steps in which it took longer than its time
    budget. skipped_greedy: steps in which it was left out because every row was greedy. state: "ok" or "quarantined".
    shadow: its counters in shadow.
    """

    name: str
    state: str = OK
    seconds: float = 0.0
    rows: int = 0
    requests: int = 0
    faults: int = 0
    slow_steps: int = 0
    skipped_greedy: int = 0
    last_error: str | None = None
    shadow: ShadowStats = msgspec.field(default_factory=ShadowStats)

    @property
    def troubles(self) -> int:
        """A number that changes with every event that is reported to the operator at once."""
        faults = self.faults + self.slow_steps + self.shadow.faults
        # An exceeded memory budget puts a processor out of service without a fault.
        return faults + (self.state != OK) + (self.shadow.state != OK)


class Quarantine(msgspec.Struct):
    """Processors in quarantine, with the reason by name: in the chain, and in shadow."""

    chain: dict[str, str] = {}
    shadow: dict[str, str] = {}

    @classmethod
    def of(cls, stats: Iterable[ProcessorStats]) -> Quarantine:
        """Returns the quarantine that these counters report."""
        listed = list(stats)
        return cls(
            {each.name: each.last_error or "" for each in listed if each.state == QUARANTINED},
            {each.name: each.shadow.last_error or "" for each in listed if each.shadow.state == QUARANTINED},
        )

    def apply_to(self, stats: Mapping[str, ProcessorStats]) -> None:
        """Marks the processors in new counters by name."""
        for name, reason in self.chain.items():
            stats[name].state, stats[name].last_error = QUARANTINED, reason
        for name, reason in self.shadow.items():
            stats[name].shadow.state, stats[name].shadow.last_error = QUARANTINED, reason

    def lifted_since(self, before: Quarantine) -> list[str]:
        """Returns the names that were in quarantine before and are not now."""
        now = self.chain.keys() | self.shadow.keys()
        return sorted((before.chain.keys() | before.shadow.keys()) - now)
