"""Actions of a chain's processors in one step, recorded until the step has succeeded."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from pydantic import BaseModel

from fastdeploy_lp.logits_processor.actions import Actions, outside
from fastdeploy_lp.logits_processor.chain.time_limit import ProcessorTimeoutError
from fastdeploy_lp.request.limits import MAX_ARGUMENT_DEPTH, MAX_REWIND_BAN, MAX_REWINDS
from fastdeploy_lp.request.outputs import ProcessorStop

MAX_REASON = 1000
"""Characters of a reason."""

MAX_VALUE = 1 << 17
"""Bytes of JSON of a value."""

MAX_VALUES = 1 << 20
"""Bytes of JSON of all values of a request."""

_JSON = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":"))


@dataclass(slots=True)
class ActionTotals:
    """Actions on a request since its beginning; kept while the request has no slot.

    num_bytes: JSON of its values. rewinds: number of rewinds. rewindable: number of its last tokens that are not sent
    yet, so that they can be taken back.
    """

    num_bytes: int = 0
    rewinds: int = 0
    rewindable: int = 0


@dataclass(frozen=True, slots=True)
class Rewind:
    """Takes back `count` tokens, at least one, and bans token ids at the place that the sequence returns to."""

    count: int
    ban: frozenset[int] = frozenset()

    def joined(self, other: Rewind | None) -> Rewind:
        """Returns the one that takes back more; of two that take back the same, one with both bans."""
        if other is None or other.count < self.count:
            return self
        return other if other.count > self.count else Rewind(self.count, self.ban | other.ban)


@dataclass(slots=True)
class SlotActions:
    """Actions on one request in one step.

    finish: the end of the request. values: the processor and the JSON of each value, in chain order. rewind: takes
    tokens back, in place of the other actions; `rewound_by` are the processors that asked for it.
    """

    finish: ProcessorStop | None = None
    values: list[tuple[str, bytes]] = field(default_factory=list)
    rewind: Rewind | None = None
    rewound_by: list[str] = field(default_factory=list)

    def add(self, name: str, recorded: RecordedSlot) -> None:
        """Adds the actions of a processor that is later in the chain."""
        if self.finish is None and recorded.finish is not None:
            self.finish = ProcessorStop(processor=name, reason=recorded.finish)
        self.values += [(name, value) for value in recorded.values]
        if recorded.rewind is not None:
            self.rewind = recorded.rewind.joined(self.rewind)
            self.rewound_by.append(name)


@dataclass(slots=True)
class RecordedSlot:
    """Actions of one processor on one request; `error` is the fault of an unusable one."""

    finish: str | None = None
    values: list[bytes] = field(default_factory=list)
    rewind: Rewind | None = None
    error: Exception | None = None

    @property
    def num_bytes(self) -> int:
        """Size of the values."""
        return sum(map(len, self.values))

    def followed_by(self, other: RecordedSlot) -> RecordedSlot:
        """Returns the actions of both."""
        finish = other.finish if self.finish is None else self.finish
        rewind = other.rewind if self.rewind is None else self.rewind.joined(other.rewind)
        return RecordedSlot(finish, self.values + other.values, rewind, self.error or other.error)


class RewindLimits(Protocol):
    """Bounds of a processor's rewinds."""

    def rewindable(self, slot: int) -> int:
        """Returns how many of the slot's last tokens the processor can take back now."""

    def no_rewind(self, slot: int, count: int) -> str | None:
        """Returns the reason why it cannot take back `count` tokens, None if it can."""

    @property
    def vocab_size(self) -> int:
        """Number of tokens in the vocabulary."""


class ActionRecorder(Actions):
    """Verbs of one processor in a chain.

    may_act: returns True for a slot that has a row in this step and a request of the processor. limits: of its rewinds.
    output: the model of its values. A second `apply` in a step replaces the actions of the first.
    """

    def __init__(
        self, may_act: Callable[[int], bool], limits: RewindLimits, output: type[BaseModel] | None = None
    ) -> None:
        self._may_act = may_act
        self._limits = limits
        self._output = output
        self._updated: dict[int, RecordedSlot] = {}
        self._applied: dict[int, RecordedSlot] = {}
        self._into: dict[int, RecordedSlot] | None = None

    def finish(self, slot: int, reason: str) -> None:
        """See `Actions.finish`."""
        recorded = self._slot(slot)
        if recorded.finish is None:
            try:
                recorded.finish = _checked_reason(reason)
            except (TypeError, ValueError) as error:
                recorded.error = recorded.error or error

    def emit(self, slot: int, value: Any) -> None:
        """See `Actions.emit`."""
        recorded = self._slot(slot)
        try:
            recorded.values.append(self._encoded(value))
        except ProcessorTimeoutError:
            raise
        except Exception as error:  # noqa: BLE001 - validators of an author's `Output` may raise anything
            recorded.error = recorded.error or error

    def rewind(self, slot: int, count: int, ban: Iterable[int] = ()) -> None:
        """See `Actions.rewind`."""
        recorded = self._slot(slot)
        try:
            rewind = _checked_rewind(count, ban, self._limits.vocab_size)
            refusal = self._limits.no_rewind(operator.index(slot), rewind.count)
            if refusal is not None:
                raise ValueError(f"rewind: {refusal}")
        except (TypeError, ValueError) as error:
            recorded.error = recorded.error or error
        else:
            recorded.rewind = rewind.joined(recorded.rewind)

    def rewindable(self, slot: int) -> int:
        """See `Actions.rewindable`."""
        return self._limits.rewindable(self._place(slot))

    @property
    def used(self) -> bool:
        """True if the processor has acted in this step."""
        return bool(self._updated or self._applied)

    def take(self) -> list[tuple[int, RecordedSlot]]:
        """Removes and returns the actions of the step, by slot, ascending."""
        taken = dict(self._updated)
        for slot, recorded in self._applied.items():
            taken[slot] = taken[slot].followed_by(recorded) if slot in taken else recorded
        self.drop_all()
        return sorted(taken.items()) if len(taken) > 1 else list(taken.items())

    def begin_update(self) -> None:
        """Begins a step."""
        if self._updated:
            self._updated = {}
        if self._applied:
            self._applied = {}
        self._into = self._updated

    def begin_apply(self) -> None:
        """Begins `apply`, which may run again in a step."""
        if self._applied:
            self._applied = {}
        self._into = self._applied

    def end(self) -> None:
        """Ends a call of the processor: its verbs are invalid until the next one."""
        self._into = None

    def drop(self, slot: int) -> None:
        """Drops the actions on a slot, where the processor has failed."""
        self._updated.pop(slot, None)
        self._applied.pop(slot, None)

    def drop_all(self) -> None:
        """Drops all actions: the processor has failed."""
        self._updated, self._applied = {}, {}

    def _slot(self, slot: int) -> RecordedSlot:
        place = self._place(slot)
        return self._recording().setdefault(place, RecordedSlot())

    def _recording(self) -> dict[int, RecordedSlot]:
        if self._into is None:
            raise outside()
        return self._into

    def _place(self, slot: int) -> int:
        self._recording()
        place = operator.index(slot)
        if not self._may_act(place):
            raise ValueError(f"actions: slot {place} has no row in this step for a request of this processor")
        return place

    def _encoded(self, value: Any) -> bytes:
        if self._output is not None:
            read = value if isinstance(value, self._output) else self._output.model_validate(value)
            # As `model_dump` does, in less time.
            value = self._output.__pydantic_serializer__.to_python(read, mode="json", by_alias=True)
        written = _JSON.encode(value).encode()
        if len(written) > MAX_VALUE:
            raise ValueError(f"emit: a value of {len(written)} bytes of JSON; at most {MAX_VALUE} are allowed")
        # No value is deeper than it has brackets, and counting them costs little.
        if written.count(b"[") + written.count(b"{") > MAX_ARGUMENT_DEPTH:
            _require_shallow(value)
        return written


def over_limit(totals: ActionTotals, recorded: RecordedSlot) -> Exception | None:
    """Returns the fault of actions beyond the request's limits; otherwise counts them and returns None."""
    totals.num_bytes += recorded.num_bytes
    totals.rewinds += recorded.rewind is not None
    if totals.num_bytes > MAX_VALUES:
        return ValueError(f"emit: the request's values exceed {MAX_VALUES} bytes of JSON")
    if totals.rewinds > MAX_REWINDS:
        return ValueError(f"rewind: the request had {MAX_REWINDS} rewinds, and may have no more")
    return None


def _checked_rewind(count: int, ban: Iterable[int], vocab_size: int) -> Rewind:
    tokens = frozenset(map(operator.index, ban))
    if len(tokens) > MAX_REWIND_BAN:
        raise ValueError(f"rewind: a ban of {len(tokens)} tokens; at most {MAX_REWIND_BAN} are allowed")
    unknown = next((token for token in tokens if not 0 <= token < vocab_size), None)
    if unknown is not None:
        raise ValueError(f"rewind: no token has the id {unknown}; the vocabulary has {vocab_size} tokens")
    rewind = Rewind(operator.index(count), tokens)
    if rewind.count < 1:
        raise ValueError(f"rewind: {rewind.count} tokens cannot be taken back; at least 1")
    return rewind


def _checked_reason(reason: str) -> str:
    if not isinstance(reason, str):
        raise TypeError(f"finish: the reason must be text, not {type(reason).__name__}")
    if len(reason) > MAX_REASON:
        raise ValueError(f"finish: a reason of {len(reason)} characters; at most {MAX_REASON} are allowed")
    reason.encode()
    return reason


def _require_shallow(value: Any) -> None:
    """Raises ValueError for a value that is nested too deep to be written everywhere."""
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > MAX_ARGUMENT_DEPTH:
            raise ValueError(f"emit: a value nested more than {MAX_ARGUMENT_DEPTH} levels deep")
        inner = [each for each in level if isinstance(each, (dict, list, tuple))]
        level = [part for each in inner for part in (each.values() if isinstance(each, dict) else each)]
