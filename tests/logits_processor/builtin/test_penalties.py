"""Penalties on tokens that occurred before, and the counts of these tokens."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from support.builtins import VOCAB_SIZE, check_builtin

from fastdeploy_lp.logits_processor.builtin.penalties import (
    FrequencyPenaltyLogitsProcessor,
    PresencePenaltyLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    TokenCounts,
)
from fastdeploy_lp.worker.sequence import Sequence


def after_repetition_penalty(row: np.ndarray, request: Sequence) -> np.ndarray:
    rate = float(np.float32(request.selection.flat["repetition_penalty"]))
    seen = sorted({*request.prompt_token_ids, *request.output_token_ids})
    logits = row[seen].astype(np.float64)
    row[seen] = np.where(logits > 0, logits / rate, logits * rate)
    return row


def test_repetition_penalty() -> None:
    arguments = st.fixed_dictionaries({"repetition_penalty": st.just(1.0) | st.floats(0.1, 5)})
    check_builtin(RepetitionPenaltyLogitsProcessor, after_repetition_penalty, arguments)


def after_presence_penalty(row: np.ndarray, request: Sequence) -> np.ndarray:
    rate = np.float64(np.float32(request.selection.flat["presence_penalty"]))
    counts = np.bincount(request.output_token_ids, minlength=VOCAB_SIZE)
    seen = counts > 0
    row[seen] = row[seen].astype(np.float64) - rate
    return row


def test_presence_penalty() -> None:
    arguments = st.fixed_dictionaries({"presence_penalty": st.just(0.0) | st.floats(-2, 2)})
    check_builtin(PresencePenaltyLogitsProcessor, after_presence_penalty, arguments)


def after_frequency_penalty(row: np.ndarray, request: Sequence) -> np.ndarray:
    rate = np.float64(np.float32(request.selection.flat["frequency_penalty"]))
    counts = np.bincount(request.output_token_ids, minlength=VOCAB_SIZE)
    seen = counts > 0
    row[seen] = row[seen].astype(np.float64) - rate * counts[seen]
    return row


def test_frequency_penalty() -> None:
    arguments = st.fixed_dictionaries({"frequency_penalty": st.just(0.0) | st.floats(-2, 2)})
    check_builtin(FrequencyPenaltyLogitsProcessor, after_frequency_penalty, arguments)


tokens = st.integers(0, 200)


@given(st.lists(tokens, max_size=100), st.lists(st.lists(tokens, max_size=40), max_size=10))
def test_counts_follow_the_live_list(prompt: list[int], gained: list[list[int]]) -> None:
    output: list[int] = []
    counts = TokenCounts(prompt, output)
    for more in [[], *gained]:
        output += more
        distinct, times = counts.catch_up()
        found = dict(zip(distinct.tolist(), times.tolist(), strict=True))
        assert len(found) == len(distinct)
        assert found == {token: Counter(output)[token] for token in {*prompt, *output}}


def test_what_was_generated_before_counts_too() -> None:
    distinct, times = TokenCounts([5, 5], [5, 7, 7]).catch_up()
    assert dict(zip(distinct.tolist(), times.tolist(), strict=True)) == {5: 1, 7: 2}
