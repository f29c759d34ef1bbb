from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.churned import DTYPES, VOCAB_SIZE, Churn, Row, Slots, crowds, only

from fastdeploy_lp.logits_processor.builtin.phrases import LowConfidenceFallbackLogitsProcessor

tokens = st.integers(2, VOCAB_SIZE - 1)
arguments = st.fixed_dictionaries(
    {"fallback_phrase": st.none() | st.lists(tokens, min_size=1, max_size=4)},
    optional={"fallback_min_p": st.sampled_from([0.0, 0.2, 0.5, 0.9]), "fallback_tolerate": st.integers(0, 6)},
)


class Reference:
    def __init__(self, args: dict[str, Any], prompt: list[int]) -> None:
        self.args, self.phrase = args, args["fallback_phrase"]
        self.unsure = 0
        self.start: int | None = None

    def __call__(self, logits: Row, output: list[int]) -> Row:
        if self.phrase is None:
            return logits
        if self.start is None:
            weights = np.exp(logits.astype(np.float64))
            self.unsure += (weights / weights.sum()).max() < self.args.get("fallback_min_p", 0.4)
            if self.unsure <= self.args.get("fallback_tolerate", 1):
                return logits
            self.start = len(output)
        written = len(output) - self.start
        return only(logits, self.phrase[written]) if written < len(self.phrase) else logits


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=25)
@given(crowds(arguments), st.integers(0, 2**20))
def test_rows_are_as_the_reference_makes_them(dtype: str, crowd: Any, seed: int) -> None:
    Churn(LowConfidenceFallbackLogitsProcessor, crowd, Reference, seed=seed, dtype=dtype).run()


def test_a_row_without_a_usable_logit_is_left_to_the_guard() -> None:
    slots = Slots(LowConfidenceFallbackLogitsProcessor)
    slots.enter(0, [5], {"fallback_phrase": [6], "fallback_tolerate": 0})
    (row,) = slots.step(np.full((1, VOCAB_SIZE), -np.inf, np.float32))
    assert np.all(row == -np.inf)
