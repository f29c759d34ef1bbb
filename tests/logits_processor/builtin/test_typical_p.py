from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from support.builtins import check_builtin, usable, weights, without

from fastdeploy_lp.logits_processor.builtin.filters import TypicalPLogitsProcessor
from fastdeploy_lp.worker.sequence import Sequence

shares = st.sampled_from([0.2, 0.5, 0.9, 1.0]) | st.floats(2**-7, 1, width=32)


def reference(row: np.ndarray, request: Sequence) -> np.ndarray:
    share = request.selection.flat["typical_p"]
    if share == 1 or not usable(row):
        return row
    below = row.astype(np.float64) - float(row.max())
    weight = weights(row)
    # The surprise less the entropy is the weighted mean of the logits less the logit.
    mean = (weight * np.maximum(below, -700.0)).sum() / weight.sum()
    distance = np.abs(below - mean).astype(np.float32)
    order = np.argsort(distance, kind="stable")
    enough = np.flatnonzero(np.cumsum(weight[order]) >= np.float64(np.float32(share)) * weight.sum())[0]
    return without(row, distance > distance[order[enough]])


def test_every_row_keeps_what_its_request_asks_for() -> None:
    check_builtin(TypicalPLogitsProcessor, reference, st.fixed_dictionaries({"typical_p": shares}))
