from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.churned import DTYPES, EOS, VOCAB_SIZE, Churn, Row, Slots, crowds

from fastdeploy_lp.logits_processor.builtin.lengths import GenLengthLogitsProcessor

tokens = st.integers(2, VOCAB_SIZE - 1)
arguments = st.fixed_dictionaries(
    {"gen_length_boost": st.integers(-4, 4).map(float) | st.none()},
    optional={
        "gen_length_power": st.integers(0, 3),
        "gen_length_token": st.lists(tokens, min_size=1, max_size=2),
        "gen_length_complete_sentences": st.lists(tokens, max_size=8),
    },
)


def reference(args: dict[str, Any], prompt: list[int]) -> Any:
    boosted = list(set(args.get("gen_length_token", [EOS])))
    ends = args.get("gen_length_complete_sentences")

    def row(logits: Row, output: list[int]) -> Row:
        waits = ends and output and output[-1] not in ends
        if args["gen_length_boost"] is None or waits or set(boosted) & set(output):
            return logits
        logits[boosted] += np.float32(args["gen_length_boost"] * (len(output) / 10) ** args.get("gen_length_power", 2))
        return logits

    return row


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=25)
@given(crowds(arguments), st.integers(0, 2**20))
def test_rows_are_as_the_reference_makes_them(dtype: str, crowd: Any, seed: int) -> None:
    Churn(GenLengthLogitsProcessor, crowd, reference, seed=seed, dtype=dtype).run()


def test_the_boost_grows_as_the_zoo_says() -> None:
    slots = Slots(GenLengthLogitsProcessor)
    slots.enter(0, [5], {"gen_length_boost": 3.0, "gen_length_power": 2}, [7] * 20)
    (row,) = slots.step(np.zeros((1, VOCAB_SIZE), np.float32))
    assert row[EOS] == 3.0 * 20**2 / 10**2
    assert np.count_nonzero(row) == 1
