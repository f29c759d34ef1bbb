"""Both ways of editing do what numpy does: bfloat16 goes the device's, since numpy has no such type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
import pytest
from support.churned import DTYPES

from fastdeploy_lp.logits_processor.builtin.logit_rows import LogitRows

ROWS, TOKENS = [0, 2, 3], [4, 0, 7]


def edited(dtype: str, edit: Callable[[LogitRows], object]) -> np.ndarray:
    logits = paddle.to_tensor(start(), dtype=dtype)
    rows = LogitRows(logits)
    assert (rows.host is None) == (dtype == "bfloat16")
    edit(rows)
    return np.array(logits.astype("float32").numpy())


def start() -> np.ndarray:
    """Numbers that both types have."""
    return np.arange(32, dtype=np.float32).reshape(4, 8)


@pytest.mark.parametrize("dtype", DTYPES)
def test_edits(dtype: str) -> None:
    expected = start()
    expected[ROWS, TOKENS] -= 2
    expected[3, 7] -= 2
    added = edited(dtype, lambda rows: rows.add([*ROWS, 3], [*TOKENS, 7], [-2.0] * 4))
    np.testing.assert_array_equal(added, expected)

    expected = start()
    expected[ROWS, TOKENS] = -np.inf
    np.testing.assert_array_equal(edited(dtype, lambda rows: rows.ban(ROWS, TOKENS)), expected)

    expected = start()
    expected[ROWS] = -np.inf
    expected[ROWS, TOKENS] = 0
    np.testing.assert_array_equal(edited(dtype, lambda rows: rows.force(ROWS, TOKENS)), expected)

    expected = start()
    expected[1, [0, 1, 3, 4, 6, 7]] = expected[3, [0, 1, 2, 3, 4, 6, 7]] = -np.inf
    kept = [np.array([5, 2]), np.array([5])]
    np.testing.assert_array_equal(edited(dtype, lambda rows: rows.keep([1, 3], kept)), expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_edits_of_nothing_change_nothing(dtype: str) -> None:
    def edit(rows: LogitRows) -> Any:
        rows.ban([], [])
        rows.force([], [])
        rows.keep([], [])

    np.testing.assert_array_equal(edited(dtype, edit), start())


@pytest.mark.parametrize("dtype", DTYPES)
def test_values(dtype: str) -> None:
    found: list[Any] = []
    edited(dtype, lambda rows: found.append(rows.values_at(ROWS, TOKENS)))
    values = found[0] if dtype == "float32" else found[0].astype("float32").numpy()
    np.testing.assert_array_equal(values, start()[ROWS, TOKENS])
