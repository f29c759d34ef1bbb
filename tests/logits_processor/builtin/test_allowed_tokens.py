from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from support.builtins import VOCAB_SIZE, check_builtin, token, without

from fastdeploy_lp.logits_processor.builtin.bans import AllowedTokensLogitsProcessor
from fastdeploy_lp.worker.sequence import Sequence


def reference(row: np.ndarray, request: Sequence) -> np.ndarray:
    return without(row, np.setdiff1d(np.arange(VOCAB_SIZE), request.selection.flat["allowed_token_ids"]))


def test_every_row_keeps_what_its_request_asks_for() -> None:
    arguments = st.fixed_dictionaries({"allowed_token_ids": st.lists(token, min_size=1, max_size=9)})
    check_builtin(AllowedTokensLogitsProcessor, reference, arguments)
