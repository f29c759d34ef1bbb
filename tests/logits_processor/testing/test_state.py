"""What objects hold."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import numpy as np
import paddle
import pytest
import torch

from fastdeploy_lp.logits_processor.testing.state import count_state, held_by


class Holder:
    shared: ClassVar[list[int]] = []

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)

    def method(self) -> None: ...


class Slotted:
    __slots__ = ("kept", "never_set")

    def __init__(self, kept: Any) -> None:
        self.kept = kept


def closure_over(kept: Any) -> Callable[[], Any]:
    return lambda: kept


TEN = list(range(10))


@pytest.mark.parametrize(
    "inside",
    [
        TEN,
        tuple(TEN),
        set(TEN),
        frozenset(TEN),
        deque(TEN),
        dict.fromkeys(TEN),
        bytearray(10),
        np.zeros((2, 5)),
        paddle.zeros([2, 5]),
        torch.zeros(2, 5),
    ],
    ids=lambda each: type(each).__name__,
)
@pytest.mark.parametrize(
    "around",
    [
        lambda each: Holder(a=each),
        lambda each: Slotted(each),
        closure_over,
        lambda each: partial(print, each),
        lambda each: Holder(a=each).method,
        lambda each: Holder(a=Holder(b=Slotted(closure_over(each)))),
    ],
    ids=["attribute", "slot", "closure", "partial", "method", "deep"],
)
def test_elements_are_counted_wherever_they_are(inside: Any, around: Callable[[Any], Any]) -> None:
    def count(value: Any) -> int:
        return count_state(around(value))

    assert count(inside) - count(None) >= 10
    assert count(inside) == count(inside)


def test_a_thing_counts_once_and_circles_end() -> None:
    once, twice = Holder(a=TEN), Holder(a=TEN, b=TEN)
    assert count_state(twice) == count_state(once)
    once.me = once  # type: ignore[attr-defined]
    assert count_state(once) == count_state(twice)


def test_classes_count_what_they_hold_in_containers() -> None:
    before = count_state(Holder())
    Holder.shared.append(1)
    try:
        assert count_state(Holder()) == before + 1
    finally:
        Holder.shared.clear()


def test_what_is_held_can_be_found() -> None:
    array = np.zeros(3)
    assert any(found is array for found in held_by(Holder(a={"b": [array]})))
    assert not any(found is array for found in held_by(Holder(a={"b": [array.copy()]})))
