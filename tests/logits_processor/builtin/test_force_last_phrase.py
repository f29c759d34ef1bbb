from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.churned import DTYPES, EOS, VOCAB_SIZE, Churn, Row, Slots, crowds, only

from fastdeploy_lp.logits_processor.builtin.phrases import ForceLastPhraseLogitsProcessor

tokens = st.integers(2, VOCAB_SIZE - 1)
arguments = st.fixed_dictionaries({"last_phrase": st.none() | st.lists(tokens, min_size=1, max_size=4)})


class Reference:
    def __init__(self, args: dict[str, Any], prompt: list[int]) -> None:
        self.phrase = args["last_phrase"]
        self.start: int | None = None

    def __call__(self, logits: Row, output: list[int]) -> Row:
        if self.phrase is None:
            return logits
        if self.start is None:
            if logits.argmax() != EOS:
                logits[EOS] = -np.inf
                return logits
            self.start = len(output)
        written = len(output) - self.start
        return only(logits, self.phrase[written]) if written < len(self.phrase) else logits


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=25)
@given(crowds(arguments), st.integers(0, 2**20))
def test_rows_are_as_the_reference_makes_them(dtype: str, crowd: Any, seed: int) -> None:
    Churn(ForceLastPhraseLogitsProcessor, crowd, Reference, seed=seed, dtype=dtype).run()


def wants_the_end() -> np.ndarray:
    logits = np.zeros((1, VOCAB_SIZE), np.float32)
    logits[0, EOS] = 5.0
    return logits


def test_a_new_instance_goes_on_with_a_phrase_that_another_has_begun() -> None:
    """As after a fault, when what was seen is gone and only the tokens are left."""
    for written, expected in (([9, 6, 7], 8), ([9, 6, 7, 8], None), ([6, 7, 8, 9], None)):
        slots = Slots(ForceLastPhraseLogitsProcessor)
        slots.enter(0, [5], {"last_phrase": [6, 7, 8]}, written)
        (row,) = slots.step(wants_the_end())
        assert np.flatnonzero(row > -np.inf).tolist() == ([expected] if expected else list(range(VOCAB_SIZE)))


def test_a_first_token_that_was_not_taken_does_not_begin_the_phrase() -> None:
    slots = Slots(ForceLastPhraseLogitsProcessor)
    slots.enter(0, [5], {"last_phrase": [6, 7]})
    (row,) = slots.step(wants_the_end())
    assert np.flatnonzero(row > -np.inf).tolist() == [6]
    # A processor behind it wanted something else.
    slots.sample({0: 11})
    (row,) = slots.step(np.zeros((1, VOCAB_SIZE), np.float32))
    assert np.flatnonzero(row == -np.inf).tolist() == [EOS]


def test_a_stop_token_is_an_end_as_well() -> None:
    slots = Slots(ForceLastPhraseLogitsProcessor)
    slots.enter(0, [5], {"last_phrase": [6, 7]})
    made = slots.leave(0)
    made.params.stop_token_ids = [12]
    slots.take(0, made)
    logits = np.zeros((1, VOCAB_SIZE), np.float32)
    logits[0, 12] = 1.0
    (row,) = slots.step(logits)
    assert np.flatnonzero(row > -np.inf).tolist() == [6]
