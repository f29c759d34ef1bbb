"""Errors of a GPU in exceptions of Paddle and torch, which raise them in whatever call comes next."""

from __future__ import annotations

import re

from fastdeploy_lp.platforms.base import DeviceFailure

# After these errors, every further call of the process on the device fails: CUDA's "sticky" errors.
LOST_STATUS = {
    *(46, 214, 220, 226, 700, 702, 710),
    *range(714, 720),
    999,
}
# As Paddle writes the status, and as this package does.
STATUS = re.compile(r"CUDA (?:error\((\d+)\)|status (\d+))")
# torch writes no status.
LOST_TEXT = re.compile(
    r"CUDA error: (an illegal memory access|device-side assert|unspecified launch failure|misaligned address"
    r"|an illegal instruction|invalid program counter|uncorrectable ECC error|the launch timed out)"
)
OUT_OF_MEMORY = re.compile(r"out of memory.*\b(GPU|CUDA)\b|\b(GPU|CUDA)\b.*out of memory|ALLOC_FAILED", re.I | re.S)


def cuda_failure(error: BaseException) -> DeviceFailure | None:
    """Returns the failure of the device that an exception reports; None for any other exception."""
    text = str(error)
    if any(int(one or other) in LOST_STATUS for one, other in STATUS.findall(text)) or LOST_TEXT.search(text):
        return DeviceFailure.LOST
    return DeviceFailure.OUT_OF_MEMORY if OUT_OF_MEMORY.search(text) else None
