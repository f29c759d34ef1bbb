from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from support.builtins import check_builtin, without

from fastdeploy_lp.logits_processor.builtin.repetitions import NoRepeatNGramLogitsProcessor
from fastdeploy_lp.worker.sequence import Sequence


def reference(row: np.ndarray, request: Sequence) -> np.ndarray:
    size, text = request.selection.flat["no_repeat_ngram_size"], request.prompt_token_ids + request.output_token_ids
    if not size or len(text) < size - 1:
        return row
    end = text[len(text) - size + 1 :]
    runs = [text[at : at + size] for at in range(len(text) - size + 1)]
    return without(row, [last for *beginning, last in runs if beginning == end])


def test_no_row_repeats_a_run_of_its_own_text() -> None:
    arguments = st.fixed_dictionaries({"no_repeat_ngram_size": st.integers(0, 4)})
    check_builtin(NoRepeatNGramLogitsProcessor, reference, arguments)
