"""Check for tensors in host memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paddle import Tensor


def in_host_memory(tensor: Tensor) -> bool:
    """Returns True if numpy can view the tensor's memory."""
    return bool(tensor.place.is_cpu_place())
