from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.churned import DTYPES, EOS, VOCAB_SIZE, Churn, Row, Slots, crowds, only

from fastdeploy_lp.logits_processor.builtin.budgets import MaxTimeLogitsProcessor

tokens = st.integers(2, VOCAB_SIZE - 1)
arguments = st.fixed_dictionaries(
    {"max_time": st.none() | st.integers(0, 20).map(float)},
    optional={"max_time_complete_sentences": st.lists(tokens, max_size=8)},
)


class Clock:
    """Goes on when it is told to."""

    now = 0.0

    def tick(self) -> None:
        self.now += 1.0

    def __call__(self) -> float:
        return self.now


def with_clock(clock: Clock) -> type[MaxTimeLogitsProcessor]:
    return type("MaxTime", (MaxTimeLogitsProcessor,), {"clock": clock})


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=25)
@given(crowds(arguments), st.integers(0, 2**20))
def test_rows_are_as_the_reference_makes_them(dtype: str, crowd: Any, seed: int) -> None:
    clock = Clock()

    def reference(args: dict[str, Any], prompt: list[int]) -> Any:
        began, ends = clock.now, args.get("max_time_complete_sentences")

        def row(logits: Row, output: list[int]) -> Row:
            if args["max_time"] is None or clock.now < began + args["max_time"]:
                return logits
            return logits if ends and output and output[-1] not in ends else only(logits, EOS)

        return row

    Churn(with_clock(clock), crowd, reference, seed=seed, dtype=dtype, tick=clock.tick).run()


def test_a_preempted_request_keeps_its_clock() -> None:
    clock = Clock()
    slots = Slots(with_clock(clock))
    slots.enter(0, [5], {"max_time": 2.0})
    assert slots.forces() == [None]
    clock.tick()
    preempted = slots.leave(0)
    slots.enter(0, [5], {"max_time": 2.0})
    assert slots.forces() == [None]
    clock.tick()
    slots.take(3, preempted)
    assert slots.forces() == [None, EOS]
