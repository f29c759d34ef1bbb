from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from support.builtins import check_builtin

from fastdeploy_lp.logits_processor.builtin.sequence_bias import SequenceBiasLogitsProcessor
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
