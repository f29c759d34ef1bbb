"""The implementations of operations on rows, for tests that hold for each of them."""

from __future__ import annotations

import pytest

from fastdeploy_lp.model_executor.ops.compiled_rows import CompiledRowOps
from fastdeploy_lp.model_executor.ops.cuda.cuda_rows import CudaRowOps
from fastdeploy_lp.model_executor.ops.library import compiled_ops
from fastdeploy_lp.model_executor.ops.paddle_rows import PaddleRowOps
from fastdeploy_lp.model_executor.ops.row_ops import RowOps
from support.cuda_shim import ShimDevice

ROW_OPS = ("paddle", "compiled", "kernels")


class ShimRowOps(CudaRowOps):
    """The kernels on the CPU, for platforms of tests."""

    @classmethod
    def open(cls) -> ShimRowOps:
        return cls(ShimDevice(), threads=64)


def make_row_ops(name: str) -> RowOps:
    """One of ROW_OPS, kernels on the CPU; skips the test where there is no C++ compiler."""
    if name == "paddle":
        return PaddleRowOps()
    library = compiled_ops()
    if library is None:
        pytest.skip("no compiled operators here")
    if name == "kernels":
        return ShimRowOps.open()
    return CompiledRowOps(library)
