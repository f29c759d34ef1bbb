from __future__ import annotations

import numpy as np
import paddle
from hypothesis import given, settings
from hypothesis import strategies as st
from support.builtins import check_builtin, random_row, usable, weights, without

from fastdeploy_lp.logits_processor.builtin.filters import MinPLogitsProcessor
from fastdeploy_lp.model_executor.ops.compiled_rows import row_ops
from fastdeploy_lp.model_executor.ops.row_ops import Cut, Draws
from fastdeploy_lp.worker.sequence import Sequence

shares = st.sampled_from([0.0, 1e-6, 0.1, 0.5, 1.0]) | st.floats(0, 1, width=32, allow_subnormal=False)


def reference(row: np.ndarray, request: Sequence) -> np.ndarray:
    share = request.selection.flat["min_p"]
    return without(row, weights(row) < np.float32(share) * 2.0**32) if share and usable(row) else row


def test_every_row_keeps_what_its_request_asks_for() -> None:
    # The reference's least weight of 1 for an own share above 0 is the rule of a draw.
    def with_least(row: np.ndarray, request: Sequence) -> np.ndarray:
        asked = bool(request.selection.flat["min_p"]) and usable(row)
        return without(reference(row, request), weights(row) < 1) if asked else row

    check_builtin(MinPLogitsProcessor, with_least, st.fixed_dictionaries({"min_p": shares}))


@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1), shares.filter(lambda share: share > 0))
def test_the_processor_and_the_sampler_keep_the_same_tokens(seed: int, share: float) -> None:
    row = random_row(np.random.default_rng(seed))[None]
    if not usable(row[0]):
        return
    one = np.ones(1, np.float32)
    draws = Draws(one, np.array([share], np.float32), np.zeros(1, np.int64), one, one)
    sampled = row_ops().filtered(paddle.to_tensor(row), draws).numpy()
    cut = paddle.to_tensor(row)
    row_ops().cut(cut, Cut.MIN_P, np.zeros(1, np.int64), np.array([share], np.float32))
    np.testing.assert_array_equal(cut.numpy(), sampled)
