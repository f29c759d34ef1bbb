"""Arguments of the compiled operators on rows."""

from __future__ import annotations

import ctypes
from typing import Any

from numpy.typing import NDArray

_POINTER, _INTEGER = ctypes.c_void_p, ctypes.c_int64
# Arguments of the functions of csrc/rows/row_*.cpp.
_DRAW_ARGUMENTS = [_POINTER, _INTEGER, _INTEGER, *[_POINTER] * 4]
_SIGNATURES = {
    "fdlp_draw_rows": [*_DRAW_ARGUMENTS, _POINTER, _POINTER],
    "fdlp_filter_rows": [*_DRAW_ARGUMENTS, _POINTER],
    "fdlp_row_logprobs": [
        *[_POINTER, _INTEGER, _INTEGER, _POINTER, _INTEGER, ctypes.c_int],
        *[_POINTER] * 3,
    ],
    "fdlp_compare_rows": [_POINTER, _INTEGER, _INTEGER, *[_POINTER] * 7],
    "fdlp_penalize": [_POINTER, _INTEGER, _INTEGER, *[_POINTER] * 7],
    "fdlp_ban": [_POINTER, _INTEGER, _INTEGER, _POINTER, _POINTER],
    "fdlp_allow_only": [_POINTER, _INTEGER, _INTEGER, *[_POINTER] * 3],
    "fdlp_mask": [_POINTER, _INTEGER, _INTEGER, _POINTER, _POINTER],
    "fdlp_cut_rows": [_POINTER, _INTEGER, ctypes.c_int, _INTEGER, _POINTER, _POINTER],
    "fdlp_add": [_POINTER, _POINTER],
    "fdlp_add_scaled": [_POINTER, _INTEGER, _INTEGER, _POINTER, _POINTER, _POINTER],
}


def declare_row_functions(library: ctypes.CDLL) -> None:
    """Declares the arguments of the library's functions; none returns a value."""
    for name, arguments in _SIGNATURES.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, None


def addresses(*arrays: NDArray[Any]) -> tuple[int, ...]:
    """Returns the addresses of C-contiguous arrays, which must exist until the call returns."""
    return tuple(array.ctypes.data for array in arrays)
