"""The ordered chain of logits processors, run once a step for the whole batch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fastdeploy_lp.logits_processor.chain.brought import BroughtProcessors
from fastdeploy_lp.logits_processor.chain.builder import ChainBuilder
from fastdeploy_lp.logits_processor.chain.calls import CallKind, RunningCalls, recorders
from fastdeploy_lp.logits_processor.chain.entry import ChainEntry, FirstCalls
from fastdeploy_lp.logits_processor.chain.faults import ChainFaults, SlotFailure
from fastdeploy_lp.logits_processor.chain.final_stages import FinalStages
from fastdeploy_lp.logits_processor.chain.forced_tokens import ForcedTokens
from fastdeploy_lp.logits_processor.chain.groups import ChainGroup, ChainGroups
from fastdeploy_lp.logits_processor.chain.phases import Phases
from fastdeploy_lp.logits_processor.chain.recorded_actions import ActionTotals, SlotActions, over_limit
from fastdeploy_lp.logits_processor.chain.rows import applied_to_seen, put_rows, take_rows
from fastdeploy_lp.logits_processor.chain.shadow import ShadowChain
from fastdeploy_lp.logits_processor.chain.time_limit import TimeLimit
from fastdeploy_lp.logits_processor.chain.trace import ChainTrace, tell_it_did_not_run, tell_it_ran
from fastdeploy_lp.logits_processor.declared import DeclaredProcessor, Selection
from fastdeploy_lp.logits_processor.errors import LogitsProcessorSpecError
from fastdeploy_lp.logits_processor.quarantine import Quarantine
from fastdeploy_lp.logits_processor.stages import LOGITS
from fastdeploy_lp.logits_processor.vllm_v1 import RowErrors
from fastdeploy_lp.request.trace import FAILED, SKIPPED
from fastdeploy_lp.stats import OK, QUARANTINED, ProcessorStats

if TYPE_CHECKING:
    from paddle import Tensor

    from fastdeploy_lp.config import FDConfig


BREAK_OFF_FACTOR = 10.0


class _Follower(Protocol):
    """A part of the chain with state for some requests in slots."""

    def leave(self, slot: int) -> None:
        """Clears a slot; does nothing for a slot without state."""


class LogitsProcessorChain:
    """Chain of the declared processors, run in declaration order or in the order of a request.

    Requests enter and leave slots. A step calls `update_state`, then `apply`; afterwards `failures` holds the slots
    whose requests must end. A failed processor is left out of the rest of the step, and rows of requests that do not
    use it get the logits of a chain without it. `final` has the processors that run after the filters. Between steps,
    `forced` has the tokens that processors will force. `shadows` run outside the chain. `builder` constructs a
    request's processors outside the steps; `enter` constructs them for a request that the builder did not see.
    """

    def __init__(
        self,
        declared: Sequence[DeclaredProcessor],
        fd_config: FDConfig,
        *,
        calls: RunningCalls | None = None,
        quarantine: Quarantine | None = None,
    ) -> None:
        """Builds every processor that is not in quarantine; `calls` records the calls of all but the builtins."""
        self._declared = {processor.name: processor for processor in declared}
        self._fd_config = fd_config
        self._policy = fd_config.structured_outputs_config
        self.stats = {name: ProcessorStats(name) for name in self._declared}
        self._limit = TimeLimit(self._policy.time_budget * BREAK_OFF_FACTOR)
        self._first_calls: dict[str, FirstCalls] = {}
        # The client of each slot's request, to count faults by client.
        self._clients: dict[int, str] = {}
        self._faults = ChainFaults(self._policy, self._clients)
        self.forced = ForcedTokens(self._faults)
        self.final = FinalStages(self._faults, self._blame, self._count)
        self._has_final = any(each.stage != LOGITS for each in declared)
        self._phases = Phases(lambda token: fd_config.tokenizer.token_bytes(token), self._phase_changed)
        self._group_of: dict[int, ChainGroup] = {}
        # By slot, what follows its request because of an option that few requests have.
        self._followers: dict[int, set[_Follower]] = {}
        self._refused: dict[int, SlotFailure] = {}
        if quarantine is not None:
            quarantine.apply_to(self.stats)
        # Of each slot's request.
        self._totals: dict[int, ActionTotals] = {}
        self._recorders = recorders(declared, calls, CallKind.CHAIN)
        in_shadow = recorders(declared, calls, CallKind.SHADOW)
        self.shadows = ShadowChain(self._declared, fd_config, self.stats, self._limit, in_shadow)
        own_names = [name for name in self._declared if name not in self._policy.shadow]
        self._main = ChainGroup([self._new_entry(name) for name in own_names])
        self._groups = ChainGroups(self._main)
        self._brought = BroughtProcessors(self._declared, self._drop_unused)
        self.builder = ChainBuilder(self._declared, fd_config, self._groups, self.shadows, self._new_entry, self._bring)
        # This step: the actions of processors that did not fail.
        self._actions: dict[int, SlotActions] = {}
        # This step: the groups that take part.
        self._live = [self._main]
        # This step: the entries that ran, and the names skipped because all rows are greedy.
        self._ran: set[ChainEntry] = set()
        self._skipped: set[str] = set()

    @property
    def argmax_invariant(self) -> dict[str, bool]:
        """`is_argmax_invariant` of each built processor, by name."""
        built = [entry for entry in self._main.entries if entry.stats.state != QUARANTINED]
        invariant = {entry.name: not entry.changes_argmax for entry in built}
        return invariant | self.shadows.argmax_invariant

    @property
    def uses_final(self) -> bool:
        """True if a processor after the filters is meant for a request of this step."""
        return self._has_final and self.final.is_used

    @property
    def uses_shadows(self) -> bool:
        """True if a processor in shadow needs an update in this step."""
        return bool(self.shadows.built) and self.shadows.has_work

    @property
    def failures(self) -> Mapping[int, SlotFailure]:
        """This step: the slots whose requests must end, and why."""
        return self._faults.failures

    def enter(
        self,
        slot: int,
        selection: Selection,
        *,
        again: bool = False,
        client: str = "",
        totals: ActionTotals | None = None,
    ) -> None:
        """Puts a request into a slot; `again` if it was in one before, and is already counted.

        totals: the actions on it so far, to which further ones are added.
        """
        self._clients[slot] = client
        self._totals[slot] = totals or ActionTotals()
        followers = self._followers[slot] = set[_Follower]()
        if selection.shadow:
            self.shadows.enter(slot, selection, again=again)
            followers.add(self.shadows)
        order = self.builder.order_of(selection)
        group = self._groups.get(order)
        try:
            self._bring(selection)
            if group is None:
                group = self._groups.add(order, [self._new_entry(name) for name in order or ()])
        # A constructor that worked at the start and fails now, or an upload that is gone.
        except (RuntimeError, LogitsProcessorSpecError) as error:
            self._refused[slot] = SlotFailure(str(error))
            group, selection = self._main, Selection(named={})
        self._group_of[slot] = group
        group.enter(slot, selection, again=again)
        if selection.when:
            places = [(entry.name, entry) for entry in group.entries]
            self._phases.enter(slot, selection, [*places, *self.shadows.places_of(selection)])
            followers.add(self._phases)
        self._ask_forced(slot)

    def leave(self, slot: int) -> None:
        """Removes the request from the slot."""
        self._refused.pop(slot, None)
        self._clients.pop(slot, None)
        self._totals.pop(slot, None)
        for follower in self._followers.pop(slot, ()):
            follower.leave(slot)
        group = self._group_of.pop(slot, None)
        if group is not None:
            group.leave(slot)

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        """Lets every processor that has work read the slots; called once before each step that samples."""
        if self._phases.requests:
            self._phases.follow(share_inputs)
        if self._refused or self._faults.failures or self._faults.left_out:
            self._faults.begin(self._refused)
        self._ran, self._skipped = set(), set()
        if self._actions:
            self._actions = {}
        stop_flags = share_inputs["stop_flags"]
        self._live = self._groups.live
        split = len(self._live) > 1
        for group in self._live:
            group.begin_step(group.own_stop_flags(stop_flags) if split else stop_flags)
            if group.after_filters:
                group.greedy = share_inputs["temperature_cpu"] == 0
            for entry in group.entries:
                entry.begin_step()
                if entry.stats.state == QUARANTINED:
                    self._faults.take_out_of_service(group, entry)
                elif entry.needs_update and not entry.rests(same_rows=group.same_rows):
                    self._guarded_update(group, entry, share_inputs)
        if self._has_final:
            self.final.begin(self._live)
        if self.uses_shadows:
            self.shadows.update_state(share_inputs)

    def apply(
        self,
        logits: Tensor,
        *,
        all_greedy: bool,
        recompute: Callable[[], Tensor],
        trace: ChainTrace | None = None,
    ) -> Tensor:
        """Returns the logits [rows, vocab_size] after every processor.

        all_greedy: every row takes the most likely token of the result, so processors at the chain's end that cannot
        change that token are left out. Such a processor before others runs, since they may depend on its logits.
        recompute: returns the original `logits` again, for use after a processor failed half way.
        trace: receives every processor's run.
        """
        if trace is not None:
            trace.begin()
        while True:
            left_out = len(self._faults.left_out)
            if len(self._live) == 1:
                result = self._apply_group(self._main, logits, trace, all_greedy=all_greedy)
            else:
                result = self._apply_split(logits, trace, all_greedy=all_greedy)
            if result is not None and len(self._faults.left_out) == left_out:
                self._count_step()
                return result
            logits = recompute()
            self._ran, self._skipped = set(), set()
            if trace is not None:
                trace.restart()

    def max_rewind(self, slot: int) -> int:
        """Returns the most tokens of the slot's request that a processor may take back at once; 0 for none."""
        return max((entry.max_rewind(slot) for entry in self._group_of[slot].entries), default=0)

    def take_actions(self, failed: Collection[int]) -> Mapping[int, SlotActions]:
        """Returns this step's actions by slot; those on a `failed` slot are dropped."""
        if not self._actions:
            return {}
        return {slot: actions for slot, actions in self._actions.items() if slot not in failed}

    def count_actions(self, actions: SlotActions) -> None:
        """Counts actions that took effect."""
        if actions.rewind is not None:
            for name in actions.rewound_by:
                self.stats[name].rewinds += 1
            return
        if actions.finish is not None:
            self.stats[actions.finish["processor"]].finishes += 1
        for name, _ in actions.values:
            self.stats[name].emitted += 1

    def ran(self) -> bool:
        """Returns True if a processor has worked on this step's logits and may have changed them."""
        return bool(self._ran)

    def needs_guard(self) -> bool:
        """Returns True if a processor ran in this step that may leave a row without a usable logit."""
        return any(not entry.processor.keeps_rows_valid for entry in self._ran)

    def works_on(self, slot: int) -> bool:
        """Returns True if a processor, also one in shadow, may see the slot's row, or the slot's request must end."""
        works = any(entry.works_on(slot) for entry in self._group_of[slot].entries)
        return works or slot in self._refused or slot in self._phases or self.shadows.works_on(slot)

    def ran_on(self, slot: int) -> list[ChainEntry]:
        """Returns the processors that ran on the slot's row in this step, in their order."""
        return [entry for entry in self._group_of[slot].entries if entry in self._ran]

    def apply_again(self, entry: ChainEntry, slot: int, logits: Tensor) -> Tensor:
        """Returns the step's logits [rows, vocab_size] after one more call of a processor that ran on the slot's row.

        Raises the processor's errors.
        """
        group = self._group_of[slot]
        with suppress(RowErrors):
            apply = partial(applied_to_seen, group, entry) if entry.hides_rows else entry.apply
            if len(self._live) == 1:
                return apply(logits)
            rows = self._rows_of(group)
            put_rows(logits, rows, apply(take_rows(logits, rows)))
        return logits

    def reset(self, name: str) -> None:
        """Puts a quarantined processor back into service, with new state."""
        entries = [entry for _, entry in self._entries_of(name)]
        self._faults.reset(name, entries)
        if not entries and name in self.stats:
            self.stats[name].state = OK
        self.shadows.reset(name)

    def _bring(self, selection: Selection) -> None:
        """Declares the processors that a request brings; raises LogitsProcessorSpecError for one that is gone."""
        if selection.brought:
            for declared in self._brought.declare(selection.brought):
                self.stats.setdefault(declared.name, ProcessorStats(declared.name))

    def _drop_unused(self, names: Collection[str]) -> set[str]:
        """Forgets the processors that no request uses; returns the others."""
        used = self._groups.drop_unused(names)
        for name in set(names) - used:
            self.stats.pop(name, None)
            self._first_calls.pop(name, None)
            self._faults.forget(name)
            self.builder.forget_processor(name)
        return used

    def _entries_of(self, name: str) -> list[tuple[ChainGroup, ChainEntry]]:
        return [(group, entry) for group in self._groups.all for entry in group.entries if entry.name == name]

    def _new_entry(self, name: str) -> ChainEntry:
        stats, declared = self.stats[name], self._declared[name]
        return ChainEntry(
            declared,
            self._fd_config,
            stats,
            recorder=self._recorders.get(name),
            first_calls=self._first_calls.setdefault(name, FirstCalls(self._policy.first_calls)),
            # A builtin has no author's loop to interrupt, and the alarm would add a third to its cost.
            limit=None if declared.source == "builtin" else self._limit,
            in_service=stats.state != QUARANTINED,
            totals=self._totals,
        )

    def _apply_split(self, logits: Tensor, trace: ChainTrace | None, *, all_greedy: bool) -> Tensor | None:
        """Gathers, processes and puts back each order's rows separately."""
        for group in self._live:
            rows = self._rows_of(group)
            if not rows.size:
                continue
            part = self._apply_group(group, take_rows(logits, rows), trace, all_greedy=all_greedy)
            if part is None:
                return None
            put_rows(logits, rows, part)
        return logits

    def _rows_of(self, group: ChainGroup) -> NDArray[np.int64]:
        """Returns the rows of a group's slots among all rows of the step, int64 [n]."""
        active = np.sort(np.concatenate([each.active_slots() for each in self._live]))
        return np.searchsorted(active, group.active_slots())

    def _apply_group(
        self, group: ChainGroup, logits: Tensor, trace: ChainTrace | None, *, all_greedy: bool
    ) -> Tensor | None:
        skipped = self._without_effect(group) if all_greedy else ()
        for entry in group.before_filters:
            if not entry.has_work:
                continue
            if entry in self._faults.left_out or entry in skipped:
                self._leave_out(group, entry, trace)
                continue
            try:
                logits = applied_to_seen(group, entry, logits) if entry.hides_rows else entry.apply(logits)
            except RowErrors as error:
                # The failed rows' requests end; every other row was processed in place.
                if not self._faults.rows_failed(group, entry, error):
                    return None
            except Exception as error:  # noqa: BLE001 - an author's code may raise anything
                self._blame(group, entry, error)
                return None
            self._ran.add(entry)
            if trace is not None:
                tell_it_ran(trace, group, entry, logits, group.active_slots())
        return logits

    def _without_effect(self, group: ChainGroup) -> Sequence[ChainEntry]:
        """Returns the processors at the chain's end that change no row's most likely token."""
        working = (
            entry for entry in reversed(group.before_filters) if entry.has_work and entry not in self._faults.left_out
        )
        return list(takewhile(lambda entry: not entry.changes_argmax, working))

    def _leave_out(self, group: ChainGroup, entry: ChainEntry, trace: ChainTrace | None) -> None:
        failed = entry in self._faults.left_out
        if not failed:
            self._skipped.add(entry.name)
        if trace is not None:
            tell_it_did_not_run(trace, group, entry, FAILED if failed else SKIPPED)

    def _guarded_update(self, group: ChainGroup, entry: ChainEntry, share_inputs: Mapping[str, Any]) -> None:
        try:
            entry.update_state(share_inputs, group.stop_flags_for(entry))
        except RowErrors as error:
            self._faults.rows_failed(group, entry, error)
        except Exception as error:  # noqa: BLE001 - an author's code may raise anything
            self._blame(group, entry, error)

    def _phase_changed(self, slot: int) -> None:
        self.forced.leave(slot)
        self._ask_forced(slot)

    def _ask_forced(self, slot: int) -> None:
        entries = self._group_of[slot].entries
        if any(entry.forces_tokens for entry in entries):
            self.forced.enter(slot, entries)
            self._followers[slot].add(self.forced)

    def _blame(self, group: ChainGroup, entry: ChainEntry, error: Exception) -> None:
        self._faults.processor_failed(group, entry, error)
        if entry.stats.state == QUARANTINED:
            for other, each in self._entries_of(entry.name):
                self._faults.take_out_of_service(other, each)

    def _count_step(self) -> None:
        """Counts a step once, even if another processor's faults made the chain run again."""
        for group in self._live:
            for entry in group.entries:
                if not (entry.has_work or entry.has_acted):
                    continue
                # Entries that run after the filters are counted there.
                if not (self._has_final and self.final.works_in_step(entry)):
                    self._count(group, entry)
        for name in self._skipped:
            self.stats[name].skipped_greedy += 1

    def _count(self, group: ChainGroup, entry: ChainEntry) -> None:
        """Counts an entry's step, and keeps its actions."""
        if entry in self._ran or entry in self.final.ran:
            entry.stats.rows += group.count_rows(entry)
        if entry in self._faults.left_out:
            return
        if entry.has_acted:
            self._keep_actions(entry)
        if entry.has_work:
            if entry.exceeds_budget():
                self._faults.too_slow(entry)
            if entry.exceeds_memory:
                self._faults.too_large(entry)

    def _keep_actions(self, entry: ChainEntry) -> None:
        """Keeps the actions of a processor that has not failed; an unusable one is a fault for its request alone."""
        # A processor that has no work in the next step does not begin it.
        for slot, recorded in entry.actions.take():
            error = recorded.error or over_limit(self._totals[slot], recorded)
            if error is not None:
                self._faults.request_failed(entry, slot, error)
            else:
                self._actions.setdefault(slot, SlotActions()).add(entry.name, recorded)
