"""Queries of NVIDIA's driver, through NVML: without Paddle and without a CUDA context."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

DEVICES_VARIABLE = "CUDA_VISIBLE_DEVICES"
NVML_PACKAGE = "nvidia-ml-py"
NVML_MISSING = f"the package {NVML_PACKAGE} is not installed; the extra fastdeploy-lp[gpu] has it"

Capability = tuple[int, int]
"""Compute capability of a device: major and minor number."""


def visible_devices() -> list[str] | None:
    """Returns the indices or UUIDs in `CUDA_VISIBLE_DEVICES`; None if it is not set and every device is visible."""
    value = os.environ.get(DEVICES_VARIABLE)
    if value is None:
        return None
    return [device.strip() for device in value.split(",") if device.strip() not in ("", "-1")]


def device_count() -> int:
    """Returns the number of devices visible to this process; 0 without a driver or without nvidia-ml-py."""
    visible = visible_devices()
    try:
        with _nvml() as nvml:
            present = int(nvml.nvmlDeviceGetCount())
    except RuntimeError:
        return 0
    return present if visible is None else min(present, len(visible))


def device_free_memory() -> int:
    """Returns the free bytes of the first visible device; raises RuntimeError if unknown."""
    try:
        with _nvml() as nvml:
            return int(nvml.nvmlDeviceGetMemoryInfo(_handle(nvml, 0)).free)
    except RuntimeError as error:
        raise RuntimeError(f"the GPU's free memory is not known: {error}") from None


def compute_capabilities(count: int) -> list[Capability]:
    """Returns the compute capabilities of the first `count` visible devices; raises RuntimeError if unknown."""
    try:
        with _nvml() as nvml:
            visible = visible_devices()
            present = int(nvml.nvmlDeviceGetCount()) if visible is None else len(visible)
            handles = [_handle(nvml, place) for place in range(min(count, present))]
            found = [nvml.nvmlDeviceGetCudaComputeCapability(handle) for handle in handles]
    except RuntimeError as error:
        raise RuntimeError(f"the GPU's compute capability is not known: {error}") from None
    return [(int(major), int(minor)) for major, minor in found]


def _handle(nvml: Any, place: int) -> Any:
    """Returns NVML's handle of the visible device at this place.

    NVML counts devices in the order of the PCI bus, as CUDA does with `CUDA_DEVICE_ORDER=PCI_BUS_ID`.
    """
    visible = visible_devices()
    device = visible[place] if visible and place < len(visible) else str(place)
    return nvml.nvmlDeviceGetHandleByIndex(int(device)) if device.isdigit() else nvml.nvmlDeviceGetHandleByUUID(device)


@contextlib.contextmanager
def _nvml() -> Iterator[Any]:
    """Yields the module `pynvml`, initialized; raises RuntimeError if it is not installed or a query fails."""
    try:
        import pynvml
    except ImportError:
        raise RuntimeError(NVML_MISSING) from None
    try:
        pynvml.nvmlInit()
        try:
            yield pynvml
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        raise RuntimeError(f"NVIDIA's driver reports: {error}") from None
