"""Processors in shadow: each runs after the chain on a copy of its requests' rows, and its results are not kept."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastdeploy_lp.logits_processor.chain.calls import CallRecorder
from fastdeploy_lp.logits_processor.chain.entry import MEBIBYTE, ChainEntry
from fastdeploy_lp.logits_processor.chain.groups import ChainGroup
from fastdeploy_lp.logits_processor.chain.phases import Phased
from fastdeploy_lp.logits_processor.chain.time_limit import TimeLimit
from fastdeploy_lp.logits_processor.declared import DeclaredProcessor, Selection
from fastdeploy_lp.logits_processor.errors import DeviceMemoryError, described, loggable, printed
from fastdeploy_lp.logits_processor.stages import DRAW, LOGITS
from fastdeploy_lp.logits_processor.vllm_v1 import RowErrors
from fastdeploy_lp.platforms import to_device
from fastdeploy_lp.stats import OK, QUARANTINED, ProcessorStats, ShadowStats

if TYPE_CHECKING:
    from paddle import Tensor

    from fastdeploy_lp.config import FDConfig

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ShadowRows:
    """Result of one processor on copies of some rows of a step.

    slots, rows: int64 [n], ascending, the slots and their rows of the step's logits.
    logits: [n, vocab_size], None if it cannot have changed the sampled tokens. filtered: True if the logits are as they
    are drawn from. tokens: int64 [n], the tokens that it chose.
    """

    name: str
    slots: NDArray[np.int64]
    rows: NDArray[np.int64]
    logits: Tensor | None
    filtered: bool = False
    tokens: Tensor | None = None


@dataclass
class ShadowStep:
    """Results of one step, and by slot the names of the processors that failed there."""

    results: list[ShadowRows] = field(default_factory=list)
    failed: dict[int, list[str]] = field(default_factory=dict)


class _OwnRows(NamedTuple):
    """Slots of a processor, and their rows of the step's logits; int64 [n], ascending."""

    slots: NDArray[np.int64]
    rows: NDArray[np.int64]


@dataclass
class _Shadow:
    """A processor with a separate instance for the requests that use it in shadow.

    In a step: `left_out`, it is out of service; `broken`, it failed as a whole; `failed`, the slots where it failed.
    """

    entry: ChainEntry
    group: ChainGroup
    stats: ShadowStats
    faults_since_reset: int = 0
    failed: set[int] = field(default_factory=set)
    broken: bool = False
    left_out: bool = False

    @property
    def needs_update(self) -> bool:
        """True with requests, and once more after the last one has left: the instance may have state."""
        return bool(self.group.slots) or self.group.followed

    def step_in(self, slot: int, selection: Selection) -> None:
        """See `Phased`."""
        self.group.enter(slot, selection.in_shadow())

    def step_out(self, slot: int) -> None:
        """See `Phased`."""
        self.group.leave(slot)


class ShadowChain:
    """Follows requests through slots as the chain does; requests without shadows have no state here.

    A processor is built for its first request; a processor that the operator puts into shadow is built at once. A fault
    ends no request: it is counted, and repeated faults put the processor out of service here until it is reset.
    """

    def __init__(
        self,
        declared: Mapping[str, DeclaredProcessor],
        fd_config: FDConfig,
        stats: Mapping[str, ProcessorStats],
        limit: TimeLimit,
        recorders: Mapping[str, CallRecorder],
    ) -> None:
        self._declared = declared
        self._fd_config = fd_config
        self._policy = fd_config.structured_outputs_config
        self._stats = stats
        self._limit = limit
        self._recorders = recorders
        self.built: dict[str, _Shadow] = {}
        # Processors whose constructor failed: requests run without them.
        self._not_built: set[str] = set()
        for name in self._policy.shadow:
            self.adopt(name, None)

    @property
    def argmax_invariant(self) -> dict[str, bool]:
        """`is_argmax_invariant` of the processors that the operator puts into shadow, by name."""
        entries = [self.built[name].entry for name in self._policy.shadow]
        return {entry.name: not entry.changes_argmax for entry in entries if self._stats[entry.name].shadow.state == OK}

    @property
    def has_work(self) -> bool:
        """True if a processor needs an update in this step."""
        return any(shadow.needs_update for shadow in self.built.values())

    def works_on(self, slot: int) -> bool:
        """Returns True if the slot's request has processors in shadow."""
        return any(slot in shadow.group.slots for shadow in self.built.values())

    def enter(self, slot: int, selection: Selection, *, again: bool = False) -> None:
        """Puts a request into a slot; `again` if it is counted already."""
        for name in selection.shadow:
            shadow = self._shadow_of(name)
            if shadow is not None:
                shadow.group.enter(slot, selection.in_shadow())
                shadow.stats.requests += not again

    def places_of(self, selection: Selection) -> list[tuple[str, Phased]]:
        """Returns the places, by name, of the request's processors in shadow."""
        return [(name, self.built[name]) for name in selection.shadow if name in self.built]

    def leave(self, slot: int) -> None:
        """Empties a slot."""
        for shadow in self.built.values():
            if slot in shadow.group.slots:
                shadow.group.leave(slot)

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        """Lets the processors read the slots; called once before each step that samples."""
        for shadow in self.built.values():
            shadow.failed, shadow.broken, shadow.left_out = set(), False, shadow.stats.state == QUARANTINED
            if not shadow.needs_update or shadow.left_out:
                continue
            shadow.group.begin_step(shadow.group.own_stop_flags(share_inputs["stop_flags"]))
            shadow.entry.begin_step()
            if shadow.entry.stage != LOGITS:
                shadow.group.greedy = share_inputs["temperature_cpu"] == 0
            try:
                shadow.entry.update_state(share_inputs, shadow.group.stop_flags_for(shadow.entry))
            except RowErrors as error:
                self._count_rows(shadow, error)
            except Exception as error:  # noqa: BLE001 - an author's code may raise anything
                self._count_whole(shadow, error)

    def apply(self, logits: Tensor, slots: NDArray[np.int64], *, all_greedy: bool) -> ShadowStep:
        """Runs the processors before the filters on copies of their rows of logits [rows, vocab_size].

        Row r is slot `slots[r]`.
        """

        def copies(rows: NDArray[np.int64]) -> Tensor:
            import paddle

            return paddle.gather(logits, to_device(rows))

        before = [shadow for shadow in self.built.values() if shadow.entry.stage == LOGITS]
        return self._run(before, slots, lambda shadow, own: self._edited(shadow, own, copies, all_greedy=all_greedy))

    def apply_final(
        self,
        slots: NDArray[np.int64],
        filtered: Callable[[NDArray[np.int64]], Tensor],
        uniforms: NDArray[np.float32],
    ) -> ShadowStep:
        """Runs the processors after the filters on copies of rows.

        filtered: returns copies of these rows as they are drawn from. uniforms: of all rows, [rows].
        """
        after = [shadow for shadow in self.built.values() if shadow.entry.stage != LOGITS]

        def run(shadow: _Shadow, own: _OwnRows) -> ShadowRows | None:
            if shadow.entry.stage == DRAW:
                return self._chosen(shadow, own, filtered(own.rows), uniforms[own.rows])
            result = self._edited(shadow, own, filtered, all_greedy=False)
            return None if result is None else replace(result, filtered=True)

        return self._run(after, slots, run)

    def _run(
        self,
        shadows: Sequence[_Shadow],
        slots: NDArray[np.int64],
        run: Callable[[_Shadow, _OwnRows], ShadowRows | None],
    ) -> ShadowStep:
        step = ShadowStep()
        for shadow in shadows:
            if shadow.left_out or not shadow.group.slots:
                continue
            own = shadow.group.slots_for(shadow.entry)
            if not own.size:
                continue
            result = None if shadow.broken else run(shadow, _OwnRows(own, np.searchsorted(slots, own)))
            if result is not None:
                step.results.append(result)
            for slot in own.tolist() if shadow.broken else sorted(shadow.failed):
                step.failed.setdefault(slot, []).append(shadow.entry.name)
            self._check_time(shadow)
            self._check_memory(shadow)
            shadow.stats.seconds = shadow.entry.stats.seconds
        return step

    def count(self, name: str, *, tokens: int, changed: int) -> None:
        """Counts the tokens that a processor was tried on, and the tokens that it would have changed."""
        self.built[name].stats.tokens += tokens
        self.built[name].stats.changed += changed

    def reset(self, name: str) -> None:
        """Puts a processor back into service."""
        shadow = self.built.get(name)
        if shadow is None:
            return
        shadow.faults_since_reset = 0
        if shadow.stats.state == QUARANTINED and self._rebuild(shadow):
            shadow.stats.state = OK

    def entry_of(self, name: str) -> ChainEntry | None:
        """Returns the processor's instance here, None if none was built."""
        return self.built[name].entry if name in self.built else None

    def new_entry(self, name: str) -> ChainEntry:
        """Returns an instance for `adopt`; raises RuntimeError if its constructor fails. Any thread may call this."""
        # Its counters are separate from the counters of the instance in the chain.
        return ChainEntry(
            self._declared[name],
            self._fd_config,
            ProcessorStats(name),
            recorder=self._recorders.get(name),
            limit=self._limit,
            in_service=self._stats[name].shadow.state == OK,
        )

    def adopt(self, name: str, entry: ChainEntry | None) -> ChainEntry:
        """Uses this instance, or a new one, unless one is in use; returns the one in use."""
        self._not_built.discard(name)
        if name not in self.built:
            made = entry or self.new_entry(name)
            self.built[name] = _Shadow(made, ChainGroup([made]), self._stats[name].shadow)
            # In the chain's order: the order of first requests would show in the results of others.
            places = {each: place for place, each in enumerate(self._declared)}
            self.built = dict(sorted(self.built.items(), key=lambda item: places.get(item[0], len(places))))
        return self.built[name].entry

    def could_not_build(self, name: str, error: BaseException) -> None:
        """Counts a constructor that failed; until another one succeeds, requests run without this shadow."""
        self._not_built.add(name)
        stats = self._stats[name].shadow
        stats.faults, stats.last_error = stats.faults + 1, printed(error)
        logger.error("in shadow: %s", stats.last_error)

    def _shadow_of(self, name: str) -> _Shadow | None:
        if name in self.built:
            return self.built[name]
        if name not in self._not_built:
            try:
                self.adopt(name, None)
            except RuntimeError as error:
                self.could_not_build(name, error)
        return self.built.get(name)

    def _edited(
        self,
        shadow: _Shadow,
        own: _OwnRows,
        copies_of: Callable[[NDArray[np.int64]], Tensor],
        *,
        all_greedy: bool,
    ) -> ShadowRows | None:
        import paddle

        slots, rows = own.slots, own.rows
        if all_greedy and not shadow.entry.changes_argmax:
            return ShadowRows(shadow.entry.name, slots, rows, None)
        copies = copies_of(rows)
        try:
            copies = shadow.entry.apply(copies)
        except RowErrors as error:
            # The other rows were processed in place.
            self._count_rows(shadow, error)
        except Exception as error:  # noqa: BLE001 - an author's code may raise anything
            self._count_whole(shadow, error)
            return None
        kept = [place for place, slot in enumerate(slots.tolist()) if slot not in shadow.failed]
        if len(kept) < len(slots):
            if not kept:
                return None
            copies = paddle.gather(copies, to_device(np.array(kept, np.int64)))
            slots, rows = slots[kept], rows[kept]
        return ShadowRows(shadow.entry.name, slots, rows, copies)

    def _chosen(
        self, shadow: _Shadow, own: _OwnRows, copies: Tensor, uniforms: NDArray[np.float32]
    ) -> ShadowRows | None:
        try:
            tokens = shadow.entry.draw(copies, uniforms)
        except Exception as error:  # noqa: BLE001 - an author's code may raise anything
            self._count_whole(shadow, error)
            return None
        # Only a builtin's choice is on the host.
        chosen = to_device(tokens) if isinstance(tokens, np.ndarray) else tokens
        return ShadowRows(shadow.entry.name, own.slots, own.rows, None, tokens=chosen)

    def _count_rows(self, shadow: _Shadow, error: RowErrors) -> None:
        active: Sequence[int] = shadow.group.slots_for(shadow.entry).tolist()
        for row, cause in error.by_row.items():
            if active[row] not in shadow.failed:
                shadow.failed.add(active[row])
                self._count(shadow, described(cause), cause)

    def _count_whole(self, shadow: _Shadow, error: Exception) -> None:
        shadow.broken = True
        self._count(shadow, described(error), error)
        # On a full device, a constructor may fail as well.
        if not isinstance(error, DeviceMemoryError):
            self._rebuild(shadow)

    def _rebuild(self, shadow: _Shadow) -> bool:
        try:
            shadow.entry.rebuild()
        except RuntimeError as error:
            self._put_out_of_service(shadow, str(error))
            return False
        return True

    def _check_time(self, shadow: _Shadow) -> None:
        if shadow.entry.exceeds_budget():
            seconds, budget = shadow.entry.measured_seconds, self._policy.time_budget
            self._count(shadow, f"it took {seconds:.3f} s of a step, its budget is {budget:g} s")

    def _check_memory(self, shadow: _Shadow) -> None:
        if shadow.entry.exceeds_memory:
            grown, budget = shadow.entry.grown / MEBIBYTE, self._policy.memory_budget
            self._put_out_of_service(shadow, f"it has taken {grown:.0f} MiB of memory, its budget is {budget} MiB")
            # A rebuild frees the state; a processor that cannot be rebuilt stays out of service with its old instance.
            with suppress(RuntimeError):
                shadow.entry.rebuild()

    def _count(self, shadow: _Shadow, what: str, error: Exception | None = None) -> None:
        reason = f"logits processor {shadow.entry.name} failed in shadow: {what}"
        logger.error("%s", reason, exc_info=loggable(error))
        if isinstance(error, DeviceMemoryError):
            return
        shadow.stats.faults += 1
        shadow.stats.last_error = reason
        shadow.faults_since_reset += 1
        if shadow.faults_since_reset >= self._policy.max_faults > 0:
            self._put_out_of_service(shadow, reason)

    def _put_out_of_service(self, shadow: _Shadow, reason: str) -> None:
        if shadow.stats.state == OK:
            logger.error("logits processor %s runs no more in shadow until it is reset", shadow.entry.name)
        shadow.stats.state = QUARANTINED
        shadow.stats.last_error = reason
