"""What differs between devices, behind one interface."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from fastdeploy_lp.platforms.base import Platform
from fastdeploy_lp.platforms.cpu import CpuPlatform
from fastdeploy_lp.platforms.gpu import GpuPlatform
from fastdeploy_lp.platforms.host_memory import in_host_memory

if TYPE_CHECKING:
    from paddle import Tensor

__all__ = ["CpuPlatform", "GpuPlatform", "Platform", "current_platform", "in_host_memory", "to_device"]


@functools.cache
def current_platform() -> Platform:
    """The platform that this installation serves on: the GPU where there is one that Paddle can use."""
    return GpuPlatform() if GpuPlatform.is_available() else CpuPlatform()


def to_device(host: NDArray[Any]) -> Tensor:
    """`Platform.to_device` of the current platform."""
    return current_platform().to_device(host)
