"""NVIDIA's driver: contexts, kernels and their launches."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any

_LIBRARY = "libcuda.so.1"
# Numbers of `CUdevice_attribute`.
_COMPUTE_CAPABILITY_MAJOR, _COMPUTE_CAPABILITY_MINOR = 75, 76
_MOST_SHARED_BYTES = 97
# Numbers of `CUfunction_attribute`.
_DECLARED_SHARED_BYTES, _MOST_LAUNCHED_SHARED_BYTES = 1, 8
_NAME_BYTES = 256


class CudaError(RuntimeError):
    """The driver is missing or a call of it failed; the message names the call and the reason."""


def call(function: str, *arguments: Any) -> None:
    """Calls a function of the driver; raises CudaError if it fails or there is no driver."""
    driver = _driver()
    status = getattr(driver, function)(*arguments)
    if status == 0:
        return
    name = ctypes.c_char_p()
    driver.cuGetErrorName(status, ctypes.byref(name))
    # `platforms/cuda_errors.py` reads the status.
    raise CudaError(f"{function} failed with CUDA status {status}: {(name.value or b'unknown error').decode()}")


@functools.cache
def _driver() -> ctypes.CDLL:
    try:
        driver = ctypes.CDLL(_LIBRARY)
    except OSError as error:
        raise CudaError(f"NVIDIA's driver is missing: {error}") from error
    status = driver.cuInit(0)
    if status != 0:
        raise CudaError(f"NVIDIA's driver finds no usable device: cuInit failed with CUDA status {status}")
    return driver


class Context:
    """A context of one device, current in the thread that makes the object."""

    def __init__(self, handle: ctypes.c_void_p) -> None:
        self._handle = handle
        self.make_current()
        self._device = ctypes.c_int()
        call("cuCtxGetDevice", ctypes.byref(self._device))

    @classmethod
    def of_thread(cls) -> Context:
        """Returns the thread's current context; raises CudaError if there is none."""
        handle = ctypes.c_void_p()
        call("cuCtxGetCurrent", ctypes.byref(handle))
        if not handle.value:
            raise CudaError("no CUDA context is current in this thread")
        return cls(handle)

    @classmethod
    def of_device(cls, index: int) -> Context:
        """Returns the primary context of a visible device, the one that libraries share."""
        device, handle = ctypes.c_int(), ctypes.c_void_p()
        call("cuDeviceGet", ctypes.byref(device), index)
        call("cuDevicePrimaryCtxRetain", ctypes.byref(handle), device)
        return cls(handle)

    def make_current(self) -> None:
        """Makes it current in the calling thread."""
        call("cuCtxSetCurrent", self._handle)

    @property
    def architecture(self) -> str:
        """The device's kind as NVRTC names it, such as "sm_90"."""
        return f"sm_{self._attribute(_COMPUTE_CAPABILITY_MAJOR)}{self._attribute(_COMPUTE_CAPABILITY_MINOR)}"

    @property
    def device_name(self) -> str:
        """The device's common name."""
        name = ctypes.create_string_buffer(_NAME_BYTES)
        call("cuDeviceGetName", name, _NAME_BYTES, self._device)
        return name.value.decode()

    @property
    def most_shared_bytes(self) -> int:
        """Shared memory that a block can have."""
        return self._attribute(_MOST_SHARED_BYTES)

    def _attribute(self, number: int) -> int:
        value = ctypes.c_int()
        call("cuDeviceGetAttribute", ctypes.byref(value), number, self._device)
        return value.value


class LoadedKernels:
    """Kernels in a context; `stream` returns the handle of the stream on which they are queued."""

    def __init__(self, context: Context, cubin: bytes, names: Sequence[str], stream: Callable[[], int]) -> None:
        self._context = context
        self._stream = stream
        self._module = ctypes.c_void_p()
        call("cuModuleLoadData", ctypes.byref(self._module), cubin)
        self._functions = {name: self._function(name) for name in names}

    def _function(self, name: str) -> ctypes.c_void_p:
        function = ctypes.c_void_p()
        call("cuModuleGetFunction", ctypes.byref(function), self._module, name.encode())
        # A launch may ask for more than 48 KB only after this.
        declared = ctypes.c_int()
        call("cuFuncGetAttribute", ctypes.byref(declared), _DECLARED_SHARED_BYTES, function)
        most = self._context.most_shared_bytes - declared.value
        call("cuFuncSetAttribute", function, _MOST_LAUNCHED_SHARED_BYTES, most)
        return function

    def launch(self, kernel: str, grid: tuple[int, int], threads: int, *arguments: Any, shared: int = 0) -> None:
        """See `Device`."""
        # Another thread than the one that loaded the kernels may have none.
        self._context.make_current()
        across, down = grid
        call(
            "cuLaunchKernel",
            *(self._functions[kernel], across, down, 1, threads, 1, 1, shared),
            *(ctypes.c_void_p(self._stream()), pointers_to(arguments), None),
        )


def pointers_to(arguments: Sequence[Any]) -> ctypes.Array[ctypes.c_void_p]:
    """Returns the addresses of numbers of `ctypes`, which must exist while they are used."""
    return (ctypes.c_void_p * len(arguments))(*map(ctypes.addressof, arguments))
