"""Declaration of a sampling field: type, bounds, help, slot array and control follow from one annotation."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args, get_type_hints

import msgspec

# An integer of more bits is named by its size: writing out a very large one is refused by Python itself.
MAX_SHOWN_BITS = 128


@dataclass(frozen=True)
class Slot:
    """Array of a field in `share_inputs`, with one entry per slot.

    empty: entry of a slot without a request, or of a request whose field is None. device: True for a copy on the
    device. entry: the entry for a value.
    """

    dtype: str
    empty: float
    device: bool = True
    entry: Callable[[Any], float] | None = None

    def of(self, value: Any) -> Any:
        """Returns the entry for a field's value."""
        if value is None:
            return self.empty
        return value if self.entry is None else self.entry(value)


@dataclass(frozen=True)
class Declared:
    """Declaration of a sampling field: its check, body field, slot and control in the playground all follow from it.

    low, high: inclusive bounds of a number; None for other types. above: exclude `low`. slot: for fields that the draw
    reads. control: show the field in the playground.
    """

    help: str
    low: float | None = None
    high: float | None = None
    above: bool = False
    slot: Slot | None = None
    control: bool = False


@dataclass(frozen=True)
class SamplingField:
    """One field of `SamplingParams`. kind: its type without None."""

    name: str
    kind: Any
    optional: bool
    default: Any
    declared: Declared

    @property
    def is_number(self) -> bool:
        """True if the field has bounds."""
        return self.declared.low is not None

    def checked(self, value: Any) -> Any:
        """Returns a number as its type; raises ValueError if it is out of bounds."""
        low, high = self.declared.low, self.declared.high
        if low is None or high is None or (value is None and self.optional):
            return value
        if self.kind is int:
            check_integer(self.name, value, int(low), int(high))
            return value
        _check_number(self.name, value, low, high)
        if self.declared.above and value == low:
            raise ValueError(f"{self.name}: must be above {low:g} and at most {high:g}")
        return float(value)


def sampling_fields(params: type[msgspec.Struct]) -> dict[str, SamplingField]:
    """Returns the fields of a struct whose annotations are `Annotated[type, Declared(...)]`, by name."""
    hints = get_type_hints(params, include_extras=True)
    found = {}
    for field in msgspec.structs.fields(params):
        annotation, declared = get_args(hints[field.name])
        kinds = [kind for kind in get_args(annotation) or (annotation,) if kind is not type(None)]
        optional = type(None) in get_args(annotation)
        kind = kinds[0] if len(kinds) == 1 else annotation
        found[field.name] = SamplingField(field.name, kind, optional, field.default, declared)
    return found


def check_integer(name: str, value: object, low: int, high: int) -> None:
    """Raises ValueError unless `value` is an integer from `low` to `high`; a bool is none."""
    allowed = f"an integer from {low} to {high}"
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name}: must be {allowed}, not {value!r}")
    if not low <= value <= high:
        raise ValueError(f"{name}: must be {allowed}, not {_shown(value)}")


def _check_number(name: str, value: object, low: float, high: float) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or (isinstance(value, float) and not math.isfinite(value)):
        raise ValueError(f"{name}: must be a number from {low:g} to {high:g}, not {value!r}")
    if isinstance(value, (int, float)) and not low <= value <= high:
        raise ValueError(f"{name}: must be from {low:g} to {high:g}, not {_shown(value)}")


def _shown(number: float) -> str:
    if isinstance(number, int):
        return str(number) if number.bit_length() <= MAX_SHOWN_BITS else f"one of {number.bit_length()} bits"
    return f"{number:g}"
