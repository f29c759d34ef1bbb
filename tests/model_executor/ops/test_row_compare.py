"""Distributions of rows and their distances: each implementation against plain numpy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.row_ops import ROW_OPS, make_row_ops

from fastdeploy_lp.model_executor.ops.row_ops import RowOps

# Around the widths of the compiled loops.
SIZES = [1, 2, 7, 8, 9, 16, 17, 513, 1000]


@pytest.fixture(scope="module", params=ROW_OPS)
def ops(request: pytest.FixtureRequest) -> RowOps:
    return make_row_ops(request.param)


@dataclass
class Case:
    """Rows, and for each an earlier one or -1."""

    logits: np.ndarray
    before: np.ndarray


@st.composite
def cases(draw: st.DrawFn) -> Case:
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    rows, size = draw(st.integers(1, 6)), draw(st.sampled_from(SIZES))
    logits = rng.standard_normal((rows, size), dtype=np.float32) * np.float32(draw(st.sampled_from([0.1, 3.0, 400.0])))
    if draw(st.booleans()):  # ties
        logits = np.round(logits)
    if draw(st.booleans()) and size > 2:
        logits[:, rng.choice(size, size // 2, replace=False)] = -np.inf
    return Case(logits, np.array([rng.integers(-1, row) if row else -1 for row in range(rows)], np.int64))


def shares(row: np.ndarray) -> np.ndarray:
    weights = np.exp(row.astype(np.float64) - np.float64(row.max()))
    return weights / weights.sum()


def entropy(share: np.ndarray) -> float:
    carrying = share[share > 0]
    return float(-(carrying * np.log(carrying)).sum())


@settings(max_examples=80)
@given(cases())
def test_rows_are_told_as_numpy_tells_them(ops: RowOps, case: Case) -> None:
    found = ops.compare(paddle.to_tensor(case.logits), case.before)
    log_sums = np.logaddexp.reduce(case.logits.astype(np.float64), axis=1)
    every = [shares(row) for row in case.logits]
    moved = [
        0.0 if before < 0 else 0.5 * np.abs(share - every[before]).sum()
        for share, before in zip(every, case.before, strict=True)
    ]
    np.testing.assert_allclose(found.log_sums.numpy(), log_sums, rtol=1e-7, atol=1e-6)
    np.testing.assert_allclose(found.entropies.numpy(), [entropy(share) for share in every], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(found.moved.numpy(), moved, rtol=1e-6, atol=1e-6)
    assert found.most_likely.tolist() == case.logits.argmax(axis=1).tolist()


def test_a_broken_row_leaves_the_others_alone(ops: RowOps) -> None:
    logits = np.random.default_rng(0).standard_normal((4, 100), dtype=np.float32)
    alone = ops.compare(paddle.to_tensor(logits[[0, 3]]), np.array([-1, 0]))
    logits[1, 7], logits[2] = np.nan, -np.inf
    found = ops.compare(paddle.to_tensor(logits), np.array([-1, 0, 1, 0]))
    for name in ("log_sums", "entropies", "moved", "most_likely"):
        np.testing.assert_array_equal(getattr(found, name).numpy()[[0, 3]], getattr(alone, name).numpy())


@settings(max_examples=30)
@given(st.data())
def test_rows_are_copied_to_their_places_and_nothing_else_changes(ops: RowOps, data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    size = data.draw(st.sampled_from(SIZES))
    logits = rng.standard_normal((4, size), dtype=np.float32)
    rows = np.array(data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=4)), np.int64)
    target = rng.standard_normal((7, size), dtype=np.float32)
    at = data.draw(st.integers(0, 7 - len(rows)))
    into, lying = paddle.to_tensor(target), data.draw(st.booleans())
    ops.copy_rows(paddle.to_tensor(logits.T.copy()).T if lying else paddle.to_tensor(logits), rows, into, at)
    target[at : at + len(rows)] = logits[rows]
    np.testing.assert_array_equal(into.numpy(), target)
