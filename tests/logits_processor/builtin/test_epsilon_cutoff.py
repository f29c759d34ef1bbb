from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from support.builtins import check_builtin, probabilities, usable, without

from fastdeploy_lp.logits_processor.builtin.filters import EpsilonCutoffLogitsProcessor
from fastdeploy_lp.worker.sequence import Sequence

epsilons = st.sampled_from([0.0, 3e-4, 0.03, 0.9]) | st.floats(0, 0.984375, width=32, allow_subnormal=False)


def reference(row: np.ndarray, request: Sequence) -> np.ndarray:
    epsilon = np.float32(request.selection.flat["epsilon_cutoff"])
    if not epsilon or not usable(row):
        return row
    return without(row, (probabilities(row) < np.float64(epsilon)) & (row < row.max()))


def test_every_row_keeps_what_its_request_asks_for() -> None:
    arguments = st.fixed_dictionaries({"epsilon_cutoff": epsilons})
    check_builtin(EpsilonCutoffLogitsProcessor, reference, arguments)
