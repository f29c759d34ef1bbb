from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from support.builtins import VOCAB_SIZE, check_builtin

from fastdeploy_lp.logits_processor.builtin.penalties import PresencePenaltyLogitsProcessor
from fastdeploy_lp.worker.sequence import Sequence


def reference(row: np.ndarray, request: Sequence) -> np.ndarray:
    rate = np.float64(np.float32(request.selection.flat["presence_penalty"]))
    counts = np.bincount(request.output_token_ids, minlength=VOCAB_SIZE)
    seen = counts > 0
    row[seen] = row[seen].astype(np.float64) - rate
    return row


def test_every_row_is_penalized_for_its_own_output() -> None:
    arguments = st.fixed_dictionaries({"presence_penalty": st.just(0.0) | st.floats(-2, 2)})
    check_builtin(PresencePenaltyLogitsProcessor, reference, arguments)
