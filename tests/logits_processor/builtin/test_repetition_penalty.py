from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from support.builtins import check_builtin

from fastdeploy_lp.logits_processor.builtin.penalties import RepetitionPenaltyLogitsProcessor
from fastdeploy_lp.worker.sequence import Sequence


def reference(row: np.ndarray, request: Sequence) -> np.ndarray:
    rate = float(np.float32(request.selection.flat["repetition_penalty"]))
    seen = sorted({*request.prompt_token_ids, *request.output_token_ids})
    logits = row[seen].astype(np.float64)
    row[seen] = np.where(logits > 0, logits / rate, logits * rate)
    return row


def test_every_row_is_penalized_for_its_own_tokens() -> None:
    arguments = st.fixed_dictionaries({"repetition_penalty": st.just(1.0) | st.floats(0.1, 5)})
    check_builtin(RepetitionPenaltyLogitsProcessor, reference, arguments)
