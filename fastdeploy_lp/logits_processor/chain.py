"""The ordered chain of logits processors, run once a step for the whole batch, and what happens when one fails."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import numpy as np

from fastdeploy_lp.logits_processor.chain_entry import ChainEntry
from fastdeploy_lp.logits_processor.chain_group import ChainGroup, Order
from fastdeploy_lp.logits_processor.chain_trace import ChainTrace
from fastdeploy_lp.logits_processor.declared import DeclaredProcessor
from fastdeploy_lp.logits_processor.selection import Selection
from fastdeploy_lp.logits_processor.shadow_chain import ShadowChain
from fastdeploy_lp.logits_processor.stats import OK, QUARANTINED, ProcessorStats
from fastdeploy_lp.logits_processor.time_limit import TimeLimit
from fastdeploy_lp.logits_processor.vllm_v1 import RowErrors
from fastdeploy_lp.platforms import to_device
from fastdeploy_lp.trace import FAILED, SKIPPED

if TYPE_CHECKING:
    from paddle import Tensor

    from fastdeploy_lp.config import FDConfig

logger = logging.getLogger(__name__)

BREAK_OFF_FACTOR = 10.0
MEBIBYTE = 1 << 20
_NO_LIMIT = nullcontext()


class ChainAbortedError(RuntimeError):
    """A processor failed and the operator wants the server to stop then."""


@dataclass(frozen=True)
class SlotFailure:
    """Why the request in a slot cannot go on.

    quarantined: it asked for a processor out of service. by_request: what it asks for cannot be done, by anybody.
    """

    message: str
    quarantined: bool = False
    by_request: bool = False


class LogitsProcessorChain:
    """Runs the declared processors in declaration order, or in the order that a request gives.

    Requests enter and leave slots. In a step, `update_state` comes first and `apply` second; afterwards `failures` says
    which slots' requests have to end. A processor that fails is left out of the rest of the step, and the rows of
    requests that do not use it get the logits they would have had without it. `shadows` are beside the chain.
    """

    def __init__(self, declared: Sequence[DeclaredProcessor], fd_config: FDConfig) -> None:
        self._declared = {processor.name: processor for processor in declared}
        self._fd_config = fd_config
        self._policy = fd_config.structured_outputs_config
        self.stats = {name: ProcessorStats(name) for name in self._declared}
        self._limit = TimeLimit(self._policy.time_budget * BREAK_OFF_FACTOR)
        self._faults_since_reset = dict.fromkeys(self._declared, 0)
        self._group_of: dict[int, ChainGroup] = {}
        self._refused: dict[int, SlotFailure] = {}
        self.shadows = ShadowChain(self._declared, fd_config, self.stats, self._limit)
        self._main = self._new_group(None)
        self._groups: dict[Order, ChainGroup] = {None: self._main}
        self.failures: dict[int, SlotFailure] = {}
        self._left_out: set[ChainEntry] = set()

    @property
    def argmax_invariant(self) -> dict[str, bool]:
        """What each processor says of itself."""
        invariant = {entry.name: not entry.changes_argmax for entry in self._main.entries}
        return invariant | self.shadows.argmax_invariant

    def enter(self, slot: int, selection: Selection) -> None:
        """A request takes a slot."""
        self.shadows.enter(slot, selection)
        order = self._order_of(selection)
        try:
            if order not in self._groups:
                self._groups[order] = self._new_group(order)
        except RuntimeError as error:  # a constructor that worked at the start and does not now
            self._refused[slot] = SlotFailure(str(error))
            order, selection = None, Selection(named={})
        self._group_of[slot] = self._groups[order]
        self._groups[order].enter(slot, selection)

    def leave(self, slot: int) -> None:
        """A request leaves its slot; the group of an order that nobody wants any more goes with it."""
        self._refused.pop(slot, None)
        self.shadows.leave(slot)
        group = self._group_of.pop(slot, None)
        if group is None:
            return
        group.leave(slot)
        if group is not self._main and not group.slots:
            self._groups = {order: other for order, other in self._groups.items() if other is not group}

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        """Let every processor that has work read the slots; once before each step that samples."""
        self.failures = dict(self._refused)
        self._left_out = set()
        stop_flags = share_inputs["stop_flags"]
        split = len(self._groups) > 1
        for group in self._groups.values():
            group.stop_flags = group.own_stop_flags(stop_flags) if split else stop_flags
            for entry in group.entries:
                entry.step_seconds = 0.0
                if entry.stats.state == QUARANTINED:
                    self._take_out_of_service(entry)
                elif entry.needs_update:
                    self._guarded_update(group, entry, share_inputs)
        if self.shadows.has_work:
            self.shadows.update_state(share_inputs)

    def apply(
        self,
        logits: Tensor,
        *,
        all_greedy: bool,
        recompute: Callable[[], Tensor],
        trace: ChainTrace | None = None,
    ) -> Tensor:
        """The logits [rows, vocab_size] after every processor.

        all_greedy: every row takes the most likely token of the result, so that processors at the chain's end that can
        not change which one that is are left out. One in front of others stays, for they may tell its logits apart.
        recompute: gives the same logits as `logits` was, for when a processor has failed half way.
        trace: is told of every processor.
        """
        while True:
            left_out = len(self._left_out)
            if trace is not None:
                trace.restart()
            result = self._apply_groups(logits, trace, all_greedy=all_greedy)
            if result is not None and len(self._left_out) == left_out:
                self._count_step(all_greedy=all_greedy)
                return result
            logits = recompute()

    def ran(self) -> bool:
        """Whether a processor had work in this step, so that the logits may be others than before it."""
        return any(self._ran(group) for group in self._groups.values())

    def needs_guard(self) -> bool:
        """Whether a processor ran in this step that may leave a row without a usable logit."""
        ran = (entry for group in self._groups.values() for entry in self._ran(group))
        return any(not entry.processor.keeps_rows_valid for entry in ran)

    def needs_guard_for(self, slot: int) -> bool:
        """The same of the processors that the slot's request asked for."""
        ran = self._ran(self._group_of[slot])
        return any(slot in entry.view.using and not entry.processor.keeps_rows_valid for entry in ran)

    def last_processor(self, slot: int) -> str:
        """The name of the last processor that ran on the slot's row, for an error about that row."""
        group = self._group_of[slot]
        names = [entry.name for entry in self._ran(group) if slot in entry.view.using]
        names = names or [entry.name for entry in self._ran(group)]
        return names[-1] if names else "none"

    def reset(self, name: str) -> None:
        """Put a quarantined processor back into service."""
        self.stats[name].state = OK
        self.shadows.reset(name)
        self._faults_since_reset[name] = 0

    def _order_of(self, selection: Selection) -> Order:
        """None for the main group, where a request that names processors stays if the others leave it alone anyway."""
        if selection.order is not None or (selection.named is None and not selection.shadow):
            return selection.order
        left_alone = [entry for entry in self._main.entries if entry.declared.leaves_alone(selection)]
        if all(entry.processor.only_with_args for entry in left_alone):
            return None
        return tuple(entry.name for entry in self._main.entries if entry not in left_alone)

    def _new_group(self, order: Order) -> ChainGroup:
        names = [name for name in self._declared if name not in self._policy.shadow] if order is None else order
        return ChainGroup([ChainEntry(self._declared[name], self._fd_config, self.stats[name]) for name in names])

    def _apply_groups(self, logits: Tensor, trace: ChainTrace | None, *, all_greedy: bool) -> Tensor | None:
        if len(self._groups) == 1:
            return self._apply_group(self._main, logits, trace, all_greedy=all_greedy)
        return self._apply_split(logits, trace, all_greedy=all_greedy)

    def _apply_split(self, logits: Tensor, trace: ChainTrace | None, *, all_greedy: bool) -> Tensor | None:
        """Every order's rows on their own: gathered, processed, and put back."""
        import paddle

        active = np.sort(np.concatenate([group.active_slots() for group in self._groups.values()]))
        for group in self._groups.values():
            rows = to_device(np.searchsorted(active, group.active_slots()))
            if not rows.size:
                continue
            part = self._apply_group(group, paddle.gather(logits, rows), trace, all_greedy=all_greedy)
            if part is None:
                return None
            logits.index_put_((rows,), part)
        return logits

    def _apply_group(
        self, group: ChainGroup, logits: Tensor, trace: ChainTrace | None, *, all_greedy: bool
    ) -> Tensor | None:
        skipped = self._skipped(group, all_greedy=all_greedy)
        for entry in self._working(group):
            if entry in self._left_out or entry in skipped:
                if trace is not None:
                    _tell_it_did_not_run(trace, group, entry, FAILED if entry in self._left_out else SKIPPED)
                continue
            try:
                with self._limit_of(entry):
                    logits = entry.apply(logits)
            except RowErrors as error:
                # The failed rows' requests end; every other row was processed in place.
                if not self._blame_rows(group, entry, error):
                    return None
            except Exception as error:  # noqa: BLE001 - an author's code may raise anything
                self._blame(group, entry, error)
                return None
            if trace is not None:
                _tell_it_ran(trace, group, entry, logits)
        return logits

    def _working(self, group: ChainGroup) -> list[ChainEntry]:
        return [entry for entry in group.entries if entry.has_work]

    def _ran(self, group: ChainGroup) -> list[ChainEntry]:
        return [entry for entry in self._working(group) if entry not in self._left_out]

    def _skipped(self, group: ChainGroup, *, all_greedy: bool) -> list[ChainEntry]:
        if not all_greedy:
            return []
        return list(takewhile(lambda entry: not entry.changes_argmax, reversed(self._ran(group))))

    def _guarded_update(self, group: ChainGroup, entry: ChainEntry, share_inputs: Mapping[str, Any]) -> None:
        try:
            with self._limit_of(entry):
                entry.update_state(share_inputs, group.stop_flags)
        except RowErrors as error:
            self._blame_rows(group, entry, error)
        except Exception as error:  # noqa: BLE001 - an author's code may raise anything
            self._blame(group, entry, error)

    def _limit_of(self, entry: ChainEntry) -> AbstractContextManager[None]:
        """A builtin runs without one: it has no author's loop to break off, and the alarm would cost a third of it."""
        return _NO_LIMIT if entry.declared.source == "builtin" else self._limit

    def _blame(self, group: ChainGroup, entry: ChainEntry, error: Exception) -> None:
        """A processor failed as a whole: it ends whoever uses it, or its whole group if nobody does in particular."""
        self._left_out.add(entry)
        active = set(group.active_slots().tolist())
        shown = set() if entry.processor.only_with_args else active
        self._count_fault(entry, error, sorted(entry.view.using & active or shown))
        try:
            entry.rebuild()
        except RuntimeError as second:
            self._quarantine(entry, str(second))
        if entry.stats.state == QUARANTINED:
            for other in self._groups.values():
                for each in other.entries:
                    if each.name == entry.name:
                        self._take_out_of_service(each)

    def _blame_rows(self, group: ChainGroup, entry: ChainEntry, error: RowErrors) -> bool:
        """Single requests' callables failed; True if the step's logits can still be used."""
        active = group.active_slots()
        for row, cause in error.by_row.items():
            self._count_fault(entry, cause, [int(active[row])])
        return self._policy.on_error == "fail"

    def _count_fault(self, entry: ChainEntry, error: Exception, slots: list[int]) -> None:
        reason = f"logits processor {entry.name} failed: {type(error).__name__}: {error}"
        logger.error("%s", reason, exc_info=error)
        entry.stats.faults += 1
        entry.stats.last_error = reason
        if self._policy.on_error == "abort":
            raise ChainAbortedError(reason) from error
        if self._policy.on_error == "fail":
            for slot in slots:
                self.failures.setdefault(slot, SlotFailure(reason))
        self._count_towards_quarantine(entry, reason)

    def _count_step(self, *, all_greedy: bool) -> None:
        """Once a step, however often a fault of another processor has made the chain run."""
        skipped: set[str] = set()
        for group in self._groups.values():
            left_out = self._skipped(group, all_greedy=all_greedy)
            for entry in self._ran(group):
                if entry in left_out:
                    skipped.add(entry.name)
                else:
                    entry.stats.rows += len(entry.view.using)
                self._check_time(entry)
                self._check_memory(entry)
        for name in skipped:
            self.stats[name].skipped_greedy += 1

    def _check_time(self, entry: ChainEntry) -> None:
        if entry.step_seconds > self._policy.time_budget > 0:
            entry.stats.slow_steps += 1
            reason = f"it took {entry.step_seconds:.3f} s of a step, its budget is {self._policy.time_budget:g} s"
            logger.warning("logits processor %s: %s", entry.name, reason)
            self._count_towards_quarantine(entry, reason)

    def _check_memory(self, entry: ChainEntry) -> None:
        """At once: unlike a slow step, memory that is gone does not come back by itself."""
        grown, budget = entry.grown / MEBIBYTE, self._policy.memory_budget
        if not grown > budget > 0:
            return
        self._quarantine(entry, f"it has taken {grown:.0f} MiB of memory, its budget is {budget} MiB")
        # Its state goes with the instance; one that cannot be built again stays in quarantine with the old one.
        with suppress(RuntimeError):
            entry.rebuild()

    def _count_towards_quarantine(self, entry: ChainEntry, reason: str) -> None:
        self._faults_since_reset[entry.name] += 1
        if self._faults_since_reset[entry.name] >= self._policy.max_faults > 0:
            self._quarantine(entry, reason)

    def _quarantine(self, entry: ChainEntry, reason: str) -> None:
        if entry.stats.state == QUARANTINED:
            return
        logger.error("logits processor %s is in quarantine until it is reset: %s", entry.name, reason)
        entry.stats.state = QUARANTINED
        entry.stats.last_error = reason

    def _take_out_of_service(self, entry: ChainEntry) -> None:
        """It does not run, so no token of this step may reach the requests that rely on it."""
        self._left_out.add(entry)
        for slot in entry.view.using:
            message = f"logits processor {entry.name} is in quarantine after repeated faults: {entry.stats.last_error}"
            self.failures.setdefault(slot, SlotFailure(message, quarantined=True))


def _tell_it_ran(trace: ChainTrace, group: ChainGroup, entry: ChainEntry, logits: Tensor) -> None:
    slots = _traced_slots(trace, group, entry)
    if slots:
        rows = np.searchsorted(group.active_slots(), slots)
        trace.ran(entry.name, slots, rows, logits, entry.step_seconds)


def _tell_it_did_not_run(trace: ChainTrace, group: ChainGroup, entry: ChainEntry, status: str) -> None:
    slots = _traced_slots(trace, group, entry)
    if slots:
        trace.did_not_run(entry.name, slots, status)


def _traced_slots(trace: ChainTrace, group: ChainGroup, entry: ChainEntry) -> list[int]:
    return [slot for slot in trace.slots if slot in group.slots and entry.works_on(slot)]
