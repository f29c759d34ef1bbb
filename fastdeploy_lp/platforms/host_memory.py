"""Tensors in host memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from paddle import Tensor


def in_host_memory(tensor: Tensor) -> bool:
    """Returns True if numpy can view the tensor's memory."""
    return bool(tensor.place.is_cpu_place())


def writable_view(logits: Tensor) -> NDArray[Any] | None:
    """Returns a view of the logits' memory [rows, vocab_size], None if numpy cannot write it."""
    if not in_host_memory(logits):
        return None
    try:
        host = np.from_dlpack(logits)
    except (BufferError, RuntimeError):  # for example bfloat16, which numpy lacks
        return None
    # Before numpy 2.1 such views are read-only; without contiguous rows `reshape` would copy.
    return host if host.flags.writeable and host.flags.c_contiguous else None
