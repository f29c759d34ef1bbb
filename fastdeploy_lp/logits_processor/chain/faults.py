"""Consequences of a processor's fault: for the rest of the step, for the requests that use it, and for itself."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field

from fastdeploy_lp.config import StructuredOutputsConfig
from fastdeploy_lp.logits_processor.chain.entry import MEBIBYTE, ChainEntry
from fastdeploy_lp.logits_processor.chain.groups import ChainGroup
from fastdeploy_lp.logits_processor.errors import DeviceMemoryError, described, loggable, printed
from fastdeploy_lp.logits_processor.vllm_v1 import RowErrors
from fastdeploy_lp.stats import OK, QUARANTINED

logger = logging.getLogger(__name__)


class ChainAbortedError(RuntimeError):
    """A processor failed, and the operator's policy is to stop the server."""


@dataclass(frozen=True)
class SlotFailure:
    """Reason why the request in a slot must end.

    quarantined: it asked for a processor out of service. by_request: no server could do what it asks for.
    """

    message: str
    quarantined: bool = False
    by_request: bool = False


@dataclass
class _FaultCount:
    """Faults of one processor since its reset, and the clients whose arguments may have caused some of them."""

    total: int = 0
    clients: set[str] = field(default_factory=set)

    def add(self, blamed: AbstractSet[str]) -> None:
        """Counts one fault; `blamed` are the clients whose arguments may have caused it, empty for no client.

        A client counts once, so that no single client can quarantine a processor for the others.
        """
        self.total += self.clients.isdisjoint(blamed)
        self.clients |= blamed


class ChainFaults:
    """Counts faults by processor name, and puts a processor with too many faults into quarantine.

    In a step, `failures` holds the slots whose requests must end, and `left_out` the processors that no longer run. A
    fault of a mandatory processor ends every request of its group, and a fault of a forced one every request that is
    forced through it: none runs without it, under any policy.

    clients: the client of each slot's request, kept current by the chain.
    """

    def __init__(self, policy: StructuredOutputsConfig, clients: Mapping[int, str]) -> None:
        self._policy = policy
        self._clients = clients
        self._since_reset: defaultdict[str, _FaultCount] = defaultdict(_FaultCount)
        self.failures: dict[int, SlotFailure] = {}
        self.left_out: set[ChainEntry] = set()

    def begin(self, refused: Mapping[int, SlotFailure]) -> None:
        """Begins a step in which the requests of the `refused` slots fail from the start."""
        self.failures = dict(refused)
        self.left_out = set()

    def processor_failed(self, group: ChainGroup, entry: ChainEntry, error: Exception) -> None:
        """Ends the requests that use a processor that failed as a whole.

        Ends its whole group if no request in particular uses it, or if it is mandatory. Raises
        ChainAbortedError if that is the operator's policy.
        """
        self.left_out.add(entry)
        entry.actions.drop_all()
        active = set(group.slots_at(entry.stage).tolist())
        shown = set(filter(entry.works_on, active))
        using = entry.view.using & active
        ended = active if entry.declared.mandatory else using or shown
        self._count(entry, error, sorted(ended), using)
        try:
            entry.rebuild()
        except RuntimeError as second:
            # On a full device, a constructor may fail as well; the next step has the old instance.
            if not isinstance(error, DeviceMemoryError):
                self._quarantine(entry, str(second))

    def rows_failed(self, group: ChainGroup, entry: ChainEntry, error: RowErrors) -> bool:
        """Handles failed callables of single requests; returns True if the step's logits are still usable.

        Raises ChainAbortedError if that is the operator's policy.
        """
        active = group.slots_for(entry)
        for row, cause in error.by_row.items():
            slot = int(active[row])
            self.request_failed(entry, slot, cause)
        return self._ends_requests(entry)

    def asking_failed(self, entry: ChainEntry, error: Exception) -> None:
        """Counts a fault of `forced_tokens`; no output depends on it, so that no request ends.

        Raises ChainAbortedError if that is the operator's policy.
        """
        self._report(entry, error)

    def request_failed(self, entry: ChainEntry, slot: int, cause: Exception) -> None:
        """Handles a fault of a processor that concerns one request; raises as `rows_failed` does."""
        entry.actions.drop(slot)
        self._count(entry, cause, [slot], {slot})

    def take_out_of_service(self, group: ChainGroup, entry: ChainEntry) -> None:
        """Fails the requests that rely on a processor in quarantine, so that no token of this step reaches them."""
        self.left_out.add(entry)
        for slot in group.slots if entry.declared.mandatory else entry.view.using:
            message = f"logits processor {entry.name} is in quarantine after repeated faults: {entry.stats.last_error}"
            self.failures.setdefault(slot, SlotFailure(message, quarantined=True))

    def too_slow(self, entry: ChainEntry) -> None:
        """Handles a step in which a processor has exceeded its time budget."""
        entry.stats.slow_steps += 1
        reason = f"it took {entry.measured_seconds:.3f} s of a step, its budget is {self._policy.time_budget:g} s"
        logger.warning("logits processor %s: %s", entry.name, reason)
        # A slow step delays every request of the batch, whichever request made it slow.
        self._count_towards_quarantine(entry, reason, frozenset())

    def too_large(self, entry: ChainEntry) -> None:
        """Puts a processor into quarantine that has taken more memory over all steps than its budget."""
        grown, budget = entry.grown / MEBIBYTE, self._policy.memory_budget
        # At once: unlike a slow step, lost memory is not recovered by itself.
        self._quarantine(entry, f"it has taken {grown:.0f} MiB of memory, its budget is {budget} MiB")
        # A rebuild frees the state; a processor that cannot be rebuilt stays in quarantine with its old instance.
        with suppress(RuntimeError):
            entry.rebuild()

    def forget(self, name: str) -> None:
        """Drops the count of a processor that is not declared any more."""
        self._since_reset.pop(name, None)

    def reset(self, name: str, entries: Collection[ChainEntry]) -> None:
        """Puts the processor of these entries back into service; if it cannot be built, it stays in quarantine."""
        self._since_reset[name] = _FaultCount()
        for entry in entries:
            if entry.stats.state == QUARANTINED and not self._rebuild(entry):
                return
        for entry in entries:
            entry.stats.state = OK

    def _rebuild(self, entry: ChainEntry) -> bool:
        """Rebuilds a processor whose state missed the steps of its quarantine; returns False if that fails."""
        try:
            entry.rebuild()
        except RuntimeError as error:
            logger.error("logits processor %s stays in quarantine: %s", entry.name, error)
            entry.stats.last_error = str(error)
            return False
        return True

    def _ends_requests(self, entry: ChainEntry) -> bool:
        return entry.declared.mandatory or self._policy.on_error == "fail"

    def _count(self, entry: ChainEntry, error: Exception, ended: Iterable[int], using: Iterable[int]) -> None:
        reason = self._report(entry, error)
        for slot in ended if self._ends_requests(entry) else entry.forced.intersection(ended):
            self.failures.setdefault(slot, SlotFailure(reason))
        if isinstance(error, DeviceMemoryError):
            return
        # A request that passes it no arguments did not cause the fault, and offline there are no clients.
        passing = (slot for slot in using if entry.view.args[slot] and slot not in entry.forced)
        blamed = {self._clients.get(slot, "") for slot in passing} - {""}
        self._count_towards_quarantine(entry, reason, blamed)

    def _report(self, entry: ChainEntry, error: Exception) -> str:
        """Logs and counts a fault; returns its description. A full device is no fault of the processor's."""
        if isinstance(error, DeviceMemoryError):
            reason = f"logits processor {entry.name} did not run: {printed(error)}"
            logger.error("%s", reason)
            return reason
        reason = f"logits processor {entry.name} failed: {described(error)}"
        logger.error("%s", reason, exc_info=loggable(error))
        entry.stats.faults += 1
        entry.stats.last_error = reason
        if self._policy.on_error == "abort":
            raise ChainAbortedError(reason) from error
        return reason

    def _count_towards_quarantine(self, entry: ChainEntry, reason: str, blamed: AbstractSet[str]) -> None:
        if not self._policy.max_faults:
            return
        count = self._since_reset[entry.name]
        count.add(blamed)
        if count.total >= self._policy.max_faults:
            self._quarantine(entry, reason)

    def _quarantine(self, entry: ChainEntry, reason: str) -> None:
        if entry.stats.state == QUARANTINED:
            return
        logger.error("logits processor %s is in quarantine until it is reset: %s", entry.name, reason)
        entry.stats.state = QUARANTINED
        entry.stats.last_error = reason
