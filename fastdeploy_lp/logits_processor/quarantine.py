"""Processors in quarantine, by the counters that the worker reports."""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping

import msgspec

from fastdeploy_lp.stats import QUARANTINED, ProcessorStats


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

    def apply_to(self, stats: MutableMapping[str, ProcessorStats]) -> None:
        """Marks the processors in new counters by name, and adds counters for uploaded ones."""
        for name, reason in self.chain.items():
            found = stats.setdefault(name, ProcessorStats(name))
            found.state, found.last_error = QUARANTINED, reason
        for name, reason in self.shadow.items():
            stats[name].shadow.state, stats[name].shadow.last_error = QUARANTINED, reason

    def lifted_since(self, before: Quarantine) -> list[str]:
        """Returns the names that were in quarantine before and are not now."""
        now = self.chain.keys() | self.shadow.keys()
        return sorted((before.chain.keys() | before.shadow.keys()) - now)
