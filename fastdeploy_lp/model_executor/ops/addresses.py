"""Addresses of tensors and arrays, for calls of compiled operators."""

from __future__ import annotations

from typing import Any

import paddle
from numpy.typing import NDArray
from paddle import Tensor


def is_plain(logits: Tensor) -> bool:
    """Returns True if the tensor suits the operators on rows: contiguous float32."""
    dtype = logits.dtype
    # Paddle's comparison takes longer than some of those operators; its types are single objects.
    return bool((dtype is paddle.float32 or dtype == paddle.float32) and logits.is_contiguous())


def addresses(*arrays: NDArray[Any]) -> tuple[int, ...]:
    """Returns the addresses of C-contiguous arrays, which must exist until the call returns."""
    return tuple(array.ctypes.data for array in arrays)
