"""What differs between devices, behind one interface."""

from fastdeploy_lp.platforms.base import Platform
from fastdeploy_lp.platforms.cpu import CpuPlatform

__all__ = ["CpuPlatform", "Platform", "current_platform"]


def current_platform() -> Platform:
    """The platform that this installation serves on."""
    return CpuPlatform()
