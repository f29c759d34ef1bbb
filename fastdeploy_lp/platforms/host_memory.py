"""Whether a tensor lies where the host can reach it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paddle import Tensor


def in_host_memory(tensor: Tensor) -> bool:
    """Whether numpy can have a view of the tensor's memory."""
    return bool(tensor.place.is_cpu_place())
