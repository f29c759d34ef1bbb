"""The implementations of operations on rows, for tests that hold for each of them."""

from __future__ import annotations

import pytest

from fastdeploy_lp.model_executor.ops.compiled_rows import CompiledRowOps
from fastdeploy_lp.model_executor.ops.library import compiled_ops
from fastdeploy_lp.model_executor.ops.paddle_rows import PaddleRowOps
from fastdeploy_lp.model_executor.ops.row_ops import RowOps

ROW_OPS = ("paddle", "compiled")


def make_row_ops(name: str) -> RowOps:
    """One of ROW_OPS; skips the test where there is no C++ compiler."""
    if name == "paddle":
        return PaddleRowOps()
    library = compiled_ops()
    if library is None:
        pytest.skip("no compiled operators here")
    return CompiledRowOps(library)
