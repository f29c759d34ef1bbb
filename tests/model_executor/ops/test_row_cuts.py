"""Cuts of rows: the compiled operators against Paddle's, bit for bit, and what both leave alone.

What a cut means is held against plain numpy in the tests of the builtin processors.
"""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.row_ops import ROW_OPS, make_row_ops

from fastdeploy_lp.model_executor.ops.paddle_rows import PaddleRowOps
from fastdeploy_lp.model_executor.ops.row_ops import Cut, RowEdits

# Around the widths of the compiled loops.
SIZES = [1, 2, 7, 8, 15, 16, 17, 40, 513, 4097]
few = settings(max_examples=60)


@pytest.fixture(scope="module")
def compiled() -> RowEdits:
    return make_row_ops("compiled")


@pytest.fixture(scope="module", params=ROW_OPS)
def cuts(request: pytest.FixtureRequest) -> RowEdits:
    return make_row_ops(request.param)


@st.composite
def logits(draw: st.DrawFn) -> np.ndarray:
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    rows, size = draw(st.integers(1, 6)), draw(st.sampled_from(SIZES))
    drawn = rng.standard_normal((rows, size), dtype=np.float32) * np.float32(draw(st.sampled_from([0.1, 2.0, 12.0])))
    if draw(st.booleans()):
        drawn = np.round(drawn)
    if draw(st.booleans()):
        drawn[:, rng.choice(size, size // 2, replace=False)] = -np.inf
    return drawn


@few
@given(logits(), st.sampled_from(Cut), st.data())
def test_compiled_operators_and_paddle_cut_alike(
    compiled: RowEdits, drawn: np.ndarray, cut: Cut, data: st.DataObject
) -> None:
    rows = np.array(data.draw(st.lists(st.integers(0, len(drawn) - 1), unique=True, min_size=1)), np.int64)
    value = st.floats(2**-7, 4.0 if cut is Cut.TOP_N_SIGMA else 1.0, width=32)
    values = np.array([data.draw(value) for _ in rows], np.float32)
    results = []
    for each in (compiled, PaddleRowOps()):
        tensor = paddle.to_tensor(drawn)
        each.cut(tensor, cut, rows, values)
        results.append(tensor.numpy())
    np.testing.assert_array_equal(*results)
    others = np.setdiff1d(np.arange(len(drawn)), rows)
    np.testing.assert_array_equal(results[0][others], drawn[others])


@pytest.mark.parametrize("cut", Cut)
@pytest.mark.parametrize("broken", [np.nan, -np.inf, np.inf])
def test_a_row_that_cannot_be_sampled_from_is_left_to_the_guard(cuts: RowEdits, cut: Cut, broken: float) -> None:
    rows = np.arange(20, dtype=np.float32).reshape(2, 10)
    rows[1, :] = rows[1, :] if np.isnan(broken) else broken
    rows[1, 3] = broken
    tensor = paddle.to_tensor(rows)
    cuts.cut(tensor, cut, np.array([0, 1]), np.array([0.3, 0.3], np.float32))
    np.testing.assert_array_equal(tensor.numpy()[1], rows[1])
    assert np.isneginf(tensor.numpy()[0]).any() or cut is Cut.TYPICAL or cut is Cut.EXCLUDE_TOP


@few
@given(logits(), st.data())
def test_biases_are_added_where_they_belong(cuts: RowEdits, drawn: np.ndarray, data: st.DataObject) -> None:
    rows, size = drawn.shape
    place = st.tuples(st.integers(0, rows - 1), st.integers(0, size - 1), st.floats(-9, 9, width=32))
    places = data.draw(st.lists(place, min_size=1, max_size=9, unique_by=lambda entry: entry[:2]))
    where, tokens = np.array([place[0] for place in places]), np.array([place[1] for place in places])
    values = np.array([place[2] for place in places], np.float32)
    expected, scaled = drawn.copy(), drawn.copy()
    expected[where, tokens] += values
    finite = np.where(np.isinf(drawn), 0, drawn)[where, tokens].astype(np.float64)
    scaled[where, tokens] += np.abs(finite) * values
    tensor, other = paddle.to_tensor(drawn), paddle.to_tensor(drawn)
    cuts.add(tensor, where, tokens, values)
    cuts.add_scaled(other, where, tokens, values)
    np.testing.assert_array_equal(tensor.numpy(), expected)
    np.testing.assert_allclose(other.numpy(), scaled, rtol=1e-6, atol=1e-6)


def test_logits_of_another_type_are_left_to_paddle(compiled: RowEdits) -> None:
    tensor = paddle.to_tensor(np.array([[1.0, 5.0, 0.0]]), dtype="float64")
    compiled.cut(tensor, Cut.MIN_P, np.array([0]), np.array([0.5], np.float32))
    compiled.add(tensor, np.array([0]), np.array([1]), np.array([2.0], np.float32))
    compiled.add_scaled(tensor, np.array([0]), np.array([1]), np.array([1.0], np.float32))
    np.testing.assert_array_equal(tensor.numpy(), [[-np.inf, 14.0, -np.inf]])
