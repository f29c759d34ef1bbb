"""Device-specific code with one interface."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from fastdeploy_lp.platforms.base import DeviceFailure, DeviceWatch, Platform
from fastdeploy_lp.platforms.cpu import CpuPlatform
from fastdeploy_lp.platforms.device_rows import write_rows
from fastdeploy_lp.platforms.gpu import GpuPlatform
from fastdeploy_lp.platforms.host_memory import in_host_memory, on_host, writable_view
from fastdeploy_lp.platforms.selection import current_platform, find_platform, platform_of

if TYPE_CHECKING:
    from paddle import Tensor

__all__ = [
    "CpuPlatform",
    "DeviceFailure",
    "DeviceWatch",
    "GpuPlatform",
    "Platform",
    "current_platform",
    "find_platform",
    "in_host_memory",
    "on_host",
    "platform_of",
    "to_device",
    "writable_view",
    "write_rows",
]


def to_device(host: NDArray[Any]) -> Tensor:
    """Calls `Platform.to_device` of the current platform."""
    return current_platform().to_device(host)
