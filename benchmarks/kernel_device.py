"""A GPU by NVIDIA's driver alone: memory, kernels and their durations, without Paddle or another framework."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastdeploy_lp.model_executor.ops.cuda.cubins import cubin_for
from fastdeploy_lp.model_executor.ops.cuda.driver import Context, LoadedKernels, call
from fastdeploy_lp.model_executor.ops.cuda.sources import KernelSources

DEFAULT_STREAM = 0
REPEATS = 20
# More than any cache holds, and enough to clear them while the host queues what is timed.
CLEARED_BYTES = 1 << 30


class DriverArray:
    """Memory of the device, freed with the object, after the work that uses it."""

    def __init__(self, size: int) -> None:
        address = ctypes.c_uint64()
        call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(max(size, 1)))
        self.address: int = address.value

    def __del__(self) -> None:
        call("cuMemFree_v2", ctypes.c_uint64(self.address))


class DriverDevice(LoadedKernels):
    """The first visible GPU with some kernels, by default those on rows."""

    def __init__(self, sources: KernelSources | None = None) -> None:
        self.context, sources = Context.of_device(0), sources or KernelSources.read()
        cubin = cubin_for(self.context.architecture, sources)
        super().__init__(self.context, cubin, sources.kernels, lambda: DEFAULT_STREAM)

    def upload(self, host: NDArray[Any]) -> DriverArray:
        """See `Device`."""
        host = np.ascontiguousarray(host)
        memory = DriverArray(host.nbytes)
        if host.nbytes:
            source = ctypes.c_void_p(host.ctypes.data)
            call("cuMemcpyHtoD_v2", ctypes.c_uint64(memory.address), source, ctypes.c_size_t(host.nbytes))
        return memory

    def empty(self, size: int) -> DriverArray:
        """See `Device`."""
        return DriverArray(size)

    def read(self, address: int, target: NDArray[Any]) -> None:
        """See `ReadableDevice`."""
        if target.nbytes:
            to = ctypes.c_void_p(target.ctypes.data)
            call("cuMemcpyDtoH_v2", to, ctypes.c_uint64(address), ctypes.c_size_t(target.nbytes))

    def milliseconds(self, run: Callable[[], None]) -> float:
        """Returns the device's time for the work that `run` queues: the median of several runs, after a first one.

        The device's caches are cold.
        """
        run()
        times, cleared = [], self.empty(CLEARED_BYTES)
        for _ in range(REPEATS):
            call("cuMemsetD32Async", ctypes.c_uint64(cleared.address), 0, ctypes.c_size_t(CLEARED_BYTES // 4), None)
            begin = _event()
            run()
            end = _event()
            call("cuEventSynchronize", end)
            elapsed = ctypes.c_float()
            call("cuEventElapsedTime", ctypes.byref(elapsed), begin, end)
            times.append(elapsed.value)
            for event in (begin, end):
                call("cuEventDestroy_v2", event)
        return float(np.median(times))


def _event() -> ctypes.c_void_p:
    """Returns an event that is recorded now."""
    event = ctypes.c_void_p()
    call("cuEventCreate", ctypes.byref(event), 0)
    call("cuEventRecord", event, None)
    return event
