"""Selection of the operators on rows of logits."""

from __future__ import annotations

from fastdeploy_lp.model_executor.ops.paddle_rows import PaddleRowOps
from fastdeploy_lp.model_executor.ops.row_ops import RowOps
from fastdeploy_lp.platforms import current_platform
from fastdeploy_lp.plugins import load_class

ROW_OPS = {
    "compiled": "fastdeploy_lp.model_executor.ops.compiled_rows:CompiledRowOps",
    "kernels": "fastdeploy_lp.model_executor.ops.cuda.cuda_rows:CudaRowOps",
}


def row_ops() -> RowOps:
    """Returns the operators that the platform names, or Paddle's where those are unavailable; raises ValueError for an
    invalid name."""
    name = current_platform().get_row_ops()
    try:
        found = load_class(ROW_OPS.get(name, name), RowOps)
    except ValueError as error:
        raise ValueError(f"operators on rows: {error}") from error
    opened: RowOps | None = found.open()
    return PaddleRowOps() if opened is None else opened
