"""The tokens that a chain's processors will force."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from fastdeploy_lp.logits_processor.chain.entry import ChainEntry
from fastdeploy_lp.logits_processor.chain.faults import ChainFaults
from fastdeploy_lp.stats import QUARANTINED


class ForcedTokens:
    """Asks the processors of a slot's request for the tokens that they will force; False if no slot has such ones."""

    def __init__(self, faults: ChainFaults) -> None:
        self._faults = faults
        # Of each slot, last in the chain first: the last processor decides on a row.
        self._entries: dict[int, list[ChainEntry]] = {}
        self._listeners: list[Callable[[], None]] = []

    def __bool__(self) -> bool:
        return bool(self._entries)

    def listen(self, listener: Callable[[], None]) -> None:
        """Calls `listener` each time that a slot gets such a processor: its request enters, or its phase changes."""
        self._listeners.append(listener)

    def enter(self, slot: int, entries: Iterable[ChainEntry]) -> None:
        """Registers a request in a slot whose order of processors is `entries`."""
        found = [entry for entry in entries if entry.forces_tokens and entry.works_on(slot)]
        if found:
            self._entries[slot] = found[::-1]
            for listener in self._listeners:
                listener()

    def leave(self, slot: int) -> None:
        """Clears a slot."""
        self._entries.pop(slot, None)

    def after(self, slot: int, output: Sequence[int], count: int) -> list[int]:
        """Returns up to `count` tokens that a processor will force in a slot after `output`, its tokens so far.

        Called between steps. Raises ChainAbortedError if a processor fails and that is the operator's policy.
        """
        for entry in self._entries.get(slot, ()):
            tokens = self._tokens_of(entry, slot, output, count)
            if tokens:
                return tokens
        return []

    def _tokens_of(self, entry: ChainEntry, slot: int, output: Sequence[int], count: int) -> list[int]:
        if not entry.forces_tokens or entry.stats.state == QUARANTINED:
            return []
        try:
            return entry.forced_tokens(slot, output, count)
        except Exception as error:  # noqa: BLE001 - an author's code may raise anything
            entry.forces_tokens = False
            self._faults.asking_failed(entry, error)
            return []
