from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from support.builtins import check_builtin, without

from fastdeploy_lp.logits_processor.builtin.bans import BadWordsLogitsProcessor
from fastdeploy_lp.worker.sequence import Sequence

# Of the tokens that outputs here are made of.
words = st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=4), max_size=8)


def reference(row: np.ndarray, request: Sequence) -> np.ndarray:
    output = request.output_token_ids
    for *beginning, last in request.selection.flat["bad_words_token_ids"]:
        if output[len(output) - len(beginning) :] == beginning and len(output) >= len(beginning):
            without(row, last)
    return row


def test_every_row_loses_the_ends_of_its_words() -> None:
    check_builtin(BadWordsLogitsProcessor, reference, st.fixed_dictionaries({"bad_words_token_ids": words}))
