"""Cuts of rows of logits with the compiled operators, for tensors in host memory."""

from __future__ import annotations

import ctypes

from paddle import Tensor

from fastdeploy_lp.model_executor.ops.addresses import addresses, is_plain
from fastdeploy_lp.model_executor.ops.library import compiled_ops
from fastdeploy_lp.model_executor.ops.paddle_cuts import PaddleRowCuts
from fastdeploy_lp.model_executor.ops.row_cuts import Cut, RowCuts
from fastdeploy_lp.model_executor.ops.row_ops import Floats, Int64s

_POINTER, _INTEGER = ctypes.c_void_p, ctypes.c_int64
# Arguments of the functions of csrc/row_cuts.cpp.
SIGNATURES = {
    "fdlp_cut_rows": [_POINTER, _INTEGER, ctypes.c_int, _INTEGER, _POINTER, _POINTER],
    "fdlp_add": [_POINTER, _INTEGER, _INTEGER, _POINTER, _POINTER, _POINTER],
    "fdlp_add_scaled": [_POINTER, _INTEGER, _INTEGER, _POINTER, _POINTER, _POINTER],
}


class CompiledRowCuts(RowCuts):
    """Each core cuts separate rows, in two or three passes over memory, none of which sorts.

    Logits that are not a contiguous float32 tensor are left to Paddle.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._paddle = PaddleRowCuts()
        for name, arguments in SIGNATURES.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, None

    def cut(self, logits: Tensor, cut: Cut, rows: Int64s, values: Floats) -> None:
        """As the interface says."""
        if not is_plain(logits):
            self._paddle.cut(logits, cut, rows, values)
            return
        self._library.fdlp_cut_rows(logits.data_ptr(), logits.shape[-1], cut, len(rows), *addresses(rows, values))

    def add(self, logits: Tensor, rows: Int64s, tokens: Int64s, values: Floats) -> None:
        """As the interface says."""
        if not is_plain(logits):
            self._paddle.add(logits, rows, tokens, values)
            return
        self._library.fdlp_add(logits.data_ptr(), logits.shape[-1], len(rows), *addresses(rows, tokens, values))

    def add_scaled(self, logits: Tensor, rows: Int64s, tokens: Int64s, values: Floats) -> None:
        """As the interface says."""
        if not is_plain(logits):
            self._paddle.add_scaled(logits, rows, tokens, values)
            return
        self._library.fdlp_add_scaled(logits.data_ptr(), logits.shape[-1], len(rows), *addresses(rows, tokens, values))


def row_cuts() -> RowCuts:
    """The fastest implementation for the platform that serves."""
    library = compiled_ops()
    return PaddleRowCuts() if library is None else CompiledRowCuts(library)
