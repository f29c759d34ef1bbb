"""Biases by the request's tokens."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.builtins import check_builtin
from support.churned import DTYPES, EOS, Churn, Row, crowds

from fastdeploy_lp.logits_processor.builtin.sequence_bias import (
    CiteFromPromptLogitsProcessor,
    SequenceBiasLogitsProcessor,
)
from fastdeploy_lp.worker.sequence import Sequence

sequences = st.lists(st.integers(0, 4), min_size=1, max_size=4)
biases = st.floats(-50, 50, width=32) | st.just(-np.inf)


def reference(row: np.ndarray, request: Sequence) -> np.ndarray:
    text = request.prompt_token_ids + request.output_token_ids
    given = request.selection.flat["sequence_bias"]
    # Single tokens first, since sums of float32 depend on their order.
    for tokens, bias in sorted(given, key=lambda entry: len(entry[0]) > 1):
        *beginning, last = tokens
        if text[len(text) - len(beginning) :] == beginning and len(text) >= len(beginning):
            row[last] += np.float32(bias)
    return row


def test_every_row_gets_the_biases_that_apply_behind_its_text() -> None:
    arguments = st.fixed_dictionaries({"sequence_bias": st.lists(st.tuples(sequences, biases), max_size=8)})
    check_builtin(SequenceBiasLogitsProcessor, reference, arguments)


boosts = st.integers(-8, 8).map(lambda eighths: eighths / 4)
cite_arguments = st.fixed_dictionaries(
    {"cite_boost": st.none() | boosts},
    optional={"cite_boost_eos": st.booleans(), "cite_conditional_boost": boosts},
)


def with_boosts(args: dict[str, Any], prompt: list[int]) -> Any:
    def row(logits: Row, output: list[int]) -> Row:
        if args["cite_boost"] is None:
            return logits
        for token in {*prompt, *([EOS] if args.get("cite_boost_eos", True) else [])}:
            logits[token] += np.float32(args["cite_boost"])
        last = [*prompt, *output][-1]
        for token in {after for before, after in itertools.pairwise(prompt) if before == last}:
            logits[token] += np.float32(args.get("cite_conditional_boost", 0.0))
        return logits

    return row


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=25)
@given(crowds(cite_arguments), st.integers(0, 2**20))
def test_cite_from_prompt(dtype: str, crowd: Any, seed: int) -> None:
    Churn(CiteFromPromptLogitsProcessor, crowd, with_boosts, seed=seed, dtype=dtype).run()
