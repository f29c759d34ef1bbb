from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from support.builtins import check_builtin, probabilities, usable, without

from fastdeploy_lp.logits_processor.builtin.filters import EtaCutoffLogitsProcessor
from fastdeploy_lp.worker.sequence import Sequence

epsilons = st.sampled_from([0.0, 3e-4, 0.03, 0.9]) | st.floats(2**-20, 0.984375, width=32)


def reference(row: np.ndarray, request: Sequence) -> np.ndarray:
    epsilon = np.float64(np.float32(request.selection.flat["eta_cutoff"]))
    if not epsilon or not usable(row):
        return row
    probability = probabilities(row)
    positive = probability[probability > 0]
    entropy = -(positive * np.log(positive)).sum()
    least = min(epsilon, np.sqrt(epsilon) * np.exp(-entropy))
    return without(row, (probability < least) & (row < row.max()))


def test_every_row_keeps_what_its_request_asks_for() -> None:
    check_builtin(EtaCutoffLogitsProcessor, reference, st.fixed_dictionaries({"eta_cutoff": epsilons}))
