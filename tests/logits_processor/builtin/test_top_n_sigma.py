from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from support.builtins import check_builtin, usable, without

from fastdeploy_lp.logits_processor.builtin.filters import TopNSigmaLogitsProcessor
from fastdeploy_lp.worker.sequence import Sequence


def reference(row: np.ndarray, request: Sequence) -> np.ndarray:
    if not usable(row):
        return row
    deviation = row[np.isfinite(row)].astype(np.float64).std()
    return without(row, row < row.max() - np.float32(request.selection.flat["top_n_sigma"]) * deviation)


def test_every_row_keeps_what_its_request_asks_for() -> None:
    arguments = st.fixed_dictionaries({"top_n_sigma": st.floats(2**-7, 5, width=32)})
    check_builtin(TopNSigmaLogitsProcessor, reference, arguments)
