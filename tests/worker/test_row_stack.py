"""A stack of rows holds what was pushed, however it grew."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.row_ops import ROW_OPS, make_row_ops

from fastdeploy_lp.worker.step_trace import RowStack

SIZE = 5
pushes = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=3), min_size=1, max_size=6)


@pytest.mark.parametrize("name", ROW_OPS)
@settings(max_examples=30)
@given(pushes=pushes, expected=st.integers(1, 6), cut=st.integers(0, 4), after=pushes)
def test_it_holds_the_rows_in_their_order(
    name: str, pushes: list[list[int]], expected: int, cut: int, after: list[list[int]]
) -> None:
    stack, kept = RowStack(make_row_ops(name), expected), np.zeros((0, SIZE), np.float32)
    rng = np.random.default_rng(0)
    for part in (pushes, after):
        for rows in part:
            logits = rng.standard_normal((4, SIZE), dtype=np.float32)
            stack.push(paddle.to_tensor(logits), np.array(rows, np.int64))
            kept = np.concatenate([kept, logits[rows]])
        assert len(stack) == len(kept)
        np.testing.assert_array_equal(stack.take().numpy(), kept)
        stack.cut(cut)
        kept = kept[:cut]


def test_an_empty_one_has_nothing_to_take() -> None:
    with pytest.raises(ValueError, match="rows: there are none"):
        RowStack(make_row_ops("paddle"), 3).take()
