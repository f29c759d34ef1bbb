from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.churned import DTYPES, VOCAB_SIZE, Churn, Row, Slots, crowds, only

from fastdeploy_lp.logits_processor.builtin.forcing import ForcedSequenceLogitsProcessor

tokens = st.integers(2, VOCAB_SIZE - 1)
arguments = st.fixed_dictionaries({"forced_sequence": st.none() | st.lists(tokens, min_size=1, max_size=6)})


def reference(args: dict[str, Any], prompt: list[int]) -> Any:
    sequence = args["forced_sequence"] or []

    def row(logits: Row, output: list[int]) -> Row:
        return only(logits, sequence[len(output)]) if len(output) < len(sequence) else logits

    return row


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=25)
@given(crowds(arguments), st.integers(0, 2**20))
def test_rows_are_as_the_reference_makes_them(dtype: str, crowd: Any, seed: int) -> None:
    Churn(ForcedSequenceLogitsProcessor, crowd, reference, seed=seed, dtype=dtype).run()


def test_the_logits_are_edited_in_place_and_only_when_something_is_forced() -> None:
    slots = Slots(ForcedSequenceLogitsProcessor)
    slots.enter(0, [5], {"forced_sequence": [7, 3]})
    slots.enter(2, [5], {})
    assert slots.forces() == [7, None]
    slots.sample({0: 7, 2: 9})
    assert slots.forces() == [3, None]
    slots.sample({0: 3, 2: 9})
    assert slots.forces() == [None, None]
