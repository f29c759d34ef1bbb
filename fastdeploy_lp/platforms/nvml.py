"""Device information from NVIDIA's driver, without a CUDA context. Not yet run on a GPU."""

from __future__ import annotations

import ctypes
import os

LIBRARY = "libnvidia-ml.so.1"


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class Nvml:
    """The driver's management library, opened for each query: queries run once per start."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(LIBRARY)
        self._call("nvmlInit_v2")

    @classmethod
    def device_count(cls) -> int:
        """Returns the number of devices visible to this process; 0 without a driver."""
        visible = visible_devices()
        try:
            present = cls()._count()
        except (OSError, RuntimeError):
            return 0
        return present if visible is None else min(present, len(visible))

    @classmethod
    def free_memory(cls) -> int:
        """Returns the free bytes of the first visible device; raises RuntimeError naming what the driver lacks."""
        try:
            library = cls()
        except OSError as error:
            raise RuntimeError(f"the GPU's free memory is not known: {error}") from None
        visible = visible_devices()
        return library._free(visible[0] if visible else "0")

    def _count(self) -> int:
        count = ctypes.c_uint()
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        return count.value

    def _free(self, device: str) -> int:
        handle, memory = ctypes.c_void_p(), _Memory()
        if device.isdigit():
            self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(int(device)), ctypes.byref(handle))
        else:
            self._call("nvmlDeviceGetHandleByUUID", device.encode(), ctypes.byref(handle))
        self._call("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory))
        return int(memory.free)

    def _call(self, name: str, *arguments: object) -> None:
        status = getattr(self._library, name)(*arguments)
        if status != 0:
            raise RuntimeError(f"the GPU's driver answers {name} with status {status}")


def visible_devices() -> list[str] | None:
    """Returns the indices or UUIDs in `CUDA_VISIBLE_DEVICES`; None if it is not set and every device is visible."""
    value = os.environ.get("CUDA_VISIBLE_DEVICES")
    if value is None:
        return None
    return [device.strip() for device in value.split(",") if device.strip() not in ("", "-1")]
