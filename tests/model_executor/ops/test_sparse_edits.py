"""Edits of single logits do what numpy does, in host memory and by the device's way, which bfloat16 goes everywhere."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import paddle
import pytest
from support.churned import DTYPES
from support.row_ops import ROW_OPS, make_row_ops

from fastdeploy_lp.model_executor.ops.row_ops import RowEdits, TokenLists
from fastdeploy_lp.platforms import writable_view

ROWS, TOKENS = np.array([0, 2, 3]), np.array([4, 0, 7])
OTHER_TOKENS = np.array([5, 1, 6])
NOTHING = np.empty(0, np.int64)

Edit = Callable[[RowEdits, paddle.Tensor], object]


def start() -> np.ndarray:
    """Numbers that all types have."""
    return np.arange(32, dtype=np.float32).reshape(4, 8)


def add(edits: RowEdits, logits: paddle.Tensor) -> None:
    edits.add(logits, np.append(ROWS, 3), np.append(TOKENS, 7), np.full(4, -2, np.float32))


def copy(edits: RowEdits, logits: paddle.Tensor) -> None:
    edits.add(logits, ROWS, TOKENS, edits.values_at(logits, ROWS, OTHER_TOKENS))


def added() -> np.ndarray:
    expected = start()
    np.add.at(expected, (np.append(ROWS, 3), np.append(TOKENS, 7)), -2)
    return expected


def copied() -> np.ndarray:
    expected = start()
    expected[ROWS, TOKENS] += expected[ROWS, OTHER_TOKENS]
    return expected


def banned() -> np.ndarray:
    expected = start()
    expected[ROWS, TOKENS] = -np.inf
    return expected


def forced() -> np.ndarray:
    expected = start()
    expected[ROWS] = -np.inf
    expected[ROWS, TOKENS] = 0
    return expected


def kept() -> np.ndarray:
    expected = start()
    expected[1, [0, 1, 3, 4, 6, 7]] = expected[3, [0, 1, 2, 3, 4, 6, 7]] = -np.inf
    return expected


EDITS: dict[str, tuple[Edit, Callable[[], np.ndarray]]] = {
    "add": (add, added),
    "add copies": (copy, copied),
    "ban": (lambda edits, logits: edits.ban(logits, ROWS, TOKENS), banned),
    "force": (lambda edits, logits: edits.force(logits, ROWS, TOKENS), forced),
    "allow only": (
        lambda edits, logits: edits.allow_only(logits, TokenLists.of([1, 3], [np.array([5, 2]), np.array([5])])),
        kept,
    ),
    "ban nothing": (lambda edits, logits: edits.ban(logits, NOTHING, NOTHING), start),
    "add nothing": (lambda edits, logits: edits.add(logits, NOTHING, NOTHING, np.empty(0, np.float32)), start),
}


@pytest.mark.parametrize("name", EDITS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ops", ROW_OPS)
def test_an_edit_does_what_numpy_does_again_and_again(ops: str, dtype: str, name: str) -> None:
    edits, (edit, expected) = make_row_ops(ops), EDITS[name]
    for _ in range(2):
        logits = paddle.to_tensor(start(), dtype=dtype)
        assert (writable_view(logits) is None) == (dtype == "bfloat16")
        edit(edits, logits)
        np.testing.assert_array_equal(logits.astype("float32").numpy(), expected())


@pytest.mark.parametrize("ops", ROW_OPS)
def test_values_for_one_logit_are_added_in_their_order(ops: str) -> None:
    # Any other order, or a lost one, is another sum.
    values = np.array([1e8, 1, 3, -1e8, 0.1, 7, 1e-3, 1e7, 5, -1e7, 0.3] * 3, np.float32)
    expected = start()
    for value in values:
        expected[2, 5] += value
    logits = paddle.to_tensor(start())
    make_row_ops(ops).add(logits, np.full(len(values), 2), np.full(len(values), 5), values)
    np.testing.assert_array_equal(logits.numpy(), expected)


@pytest.mark.parametrize("ops", ROW_OPS)
def test_the_same_arrays_fit_another_vocabulary(ops: str) -> None:
    edits, values = make_row_ops(ops), np.array([1, 2, 3], np.float32)
    for size in (8, 16, 8):
        logits, expected = paddle.zeros([4, size]), np.zeros((4, size), np.float32)
        expected[ROWS, TOKENS] = values
        edits.add(logits, ROWS, TOKENS, values)
        np.testing.assert_array_equal(logits.numpy(), expected)
