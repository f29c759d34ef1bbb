"""What differs between devices, behind one interface."""

from fastdeploy_lp.platforms.base import Platform
from fastdeploy_lp.platforms.cpu import CpuPlatform
from fastdeploy_lp.platforms.selection import current_platform, find_platform, platform_of

__all__ = ["CpuPlatform", "Platform", "current_platform", "find_platform", "platform_of"]
