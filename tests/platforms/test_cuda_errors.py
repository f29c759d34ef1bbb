"""Errors of the device in exceptions of Paddle and torch."""

from __future__ import annotations

import pytest

from fastdeploy_lp.platforms import CpuPlatform, DeviceFailure, GpuPlatform

LOST, FULL = DeviceFailure.LOST, DeviceFailure.OUT_OF_MEMORY


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (OSError("(External) CUDA error(700), an illegal memory access was encountered. \n  [Hint: …]"), LOST),
        (OSError("(External) CUDA error(719), unspecified launch failure."), LOST),
        (OSError("(External) CUDA error(710), device-side assert triggered."), LOST),
        (RuntimeError("a copy of 64 bytes to the GPU failed with CUDA status 700"), LOST),
        (RuntimeError("CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronously"), LOST),
        (MemoryError("ResourceExhaustedError: \n\nOut of memory error on GPU 0. Cannot allocate 9.2GB memory"), FULL),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79 GiB"), FULL),
        (OSError("(External) CUDA error(2), out of memory."), FULL),
        (OSError("(External) CUBLAS error(3). [Hint: 'CUBLAS_STATUS_ALLOC_FAILED'. …]"), FULL),
        # The fault of the call itself.
        (OSError("(External) CUDA error(9), invalid configuration argument."), None),
        (OSError("(External) CUDA error(1), invalid argument."), None),
        (MemoryError(), None),
        (ValueError("(InvalidArgument) The axis must be below 2, but is 700"), None),
        (RuntimeError("boom"), None),
    ],
)
def test_what_the_device_is_to_blame_for(error: Exception, failure: DeviceFailure | None) -> None:
    assert GpuPlatform().failure_of(error) is failure
    assert CpuPlatform().failure_of(error) is None
