"""The GPU platform: NVIDIA devices, through a CUDA build of Paddle. Not yet run on a GPU."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.metadata
import importlib.util
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fastdeploy_lp.checkpoint.config_field import positive_int
from fastdeploy_lp.platforms.base import Platform

if TYPE_CHECKING:
    from paddle import Tensor

    from fastdeploy_lp.config import FDConfig


ALIGNMENT = 64


class Copies(Protocol):
    """The device's queue of copies."""

    def copy(self, target: Any, source: NDArray[np.uint8]) -> None:
        """Queues a copy of `source`, whose contents must not change until a later fence has been waited for."""

    def fence(self) -> Callable[[], object]:
        """Returns a function that waits until the copies queued so far are done."""


class PinnedRing:
    """Two halves of `memory` uint8 [bytes], one of which is filled while copies read from the other.

    A half is refilled after the copies from it are done. Since a step ends with a read that depends on them, they are
    long done when the ring wraps around, and the wait takes no time.
    """

    def __init__(self, memory: NDArray[np.uint8], copies: Copies) -> None:
        self._half = len(memory) // 2
        self._memory = memory
        self._copies = copies
        self._fences: list[Callable[[], object] | None] = [None, None]
        self._current, self._used = 0, 0

    def write(self, target: Any, host: NDArray[Any]) -> bool:
        """Queues a copy of the array to the target; returns False, and copies nothing, if it exceeds a half."""
        size = host.nbytes
        if size > self._half:
            return False
        if self._used + size > self._half:
            self._turn()
        start = self._current * self._half + self._used
        source = self._memory[start : start + size]
        source[:] = np.ascontiguousarray(host).reshape(-1).view(np.uint8)
        self._used += -(-size // ALIGNMENT) * ALIGNMENT
        self._copies.copy(target, source)
        return True

    def _turn(self) -> None:
        self._fences[self._current] = self._copies.fence()
        self._current, self._used = 1 - self._current, 0
        fence, self._fences[self._current] = self._fences[self._current], None
        if fence is not None:
            fence()


DEVICES_VARIABLE = "CUDA_VISIBLE_DEVICES"
CUDA_BUILD = "paddlepaddle-gpu"
NVML_PACKAGE = "nvidia-ml-py"
NVML_MISSING = f"the package {NVML_PACKAGE} is not installed; the extra fastdeploy-lp[gpu] has it"
BLOCK_SIZES = (32, 64, 128)
HEAD_DIMS = (32, 64, 96, 128)
# Several times the bytes that a step sends to the device.
PINNED_BYTES = 8 << 20

ENVIRONMENT = {
    # CUDA graphs retain the memory that they captured; only this allocator supports that.
    "FLAGS_allocator_strategy": "auto_growth",
    # The operator's variant for grouped heads supports only some group sizes; the plain one supports all.
    "FLAGS_use_xqa_optim": "0",
}


class GpuPlatform(Platform):
    """bfloat16, attention by `block_multihead_attention`, 8-bit weights by `weight_only_linear`, CUDA graphs.

    Written against the signatures of Paddle 3.3 and the sources of its kernels; not yet run on a GPU.
    """

    name = "gpu"
    model_dtype = "bfloat16"
    weight_only_int8 = True
    distributed_backend = "nccl"
    default_block_size = 64

    @classmethod
    def is_supported(cls) -> bool:
        """Returns True if a CUDA build of Paddle is installed and the driver reports a device; imports no Paddle."""
        return cls.what_is_missing() is None

    @classmethod
    def what_is_missing(cls) -> str | None:
        """Returns the reason why this machine or installation cannot serve on it; None if it can."""
        if not _cuda_build_is_installed():
            return f"the package {CUDA_BUILD} is not installed"
        if importlib.util.find_spec("pynvml") is None:
            return NVML_MISSING
        return None if device_count() > 0 else "NVIDIA's driver shows no device"

    def device_of_rank(self, rank: int) -> str:
        """Assigns the visible GPUs to ranks in order."""
        return f"{self.device_type}:{rank}"

    def worker_environment(self) -> dict[str, str]:
        """Returns Paddle's flags for CUDA graphs and grouped heads; the caller's environment cannot override them."""
        return dict(ENVIRONMENT)

    def data_parallel_environment(self, rank: int, size: int) -> dict[str, str]:
        """Assigns one visible device to each worker; raises ValueError if there are fewer devices than workers."""
        named = visible_devices()
        devices = [str(index) for index in range(device_count())] if named is None else named
        if len(devices) < size:
            raise ValueError(f"data_parallel_size: {size} workers need as many GPUs, and {len(devices)} are visible")
        return {DEVICES_VARIABLE: devices[rank]}

    def free_memory(self) -> int:
        """Returns the free bytes of the first visible device, read from the driver without a CUDA context.

        Raises RuntimeError if nvidia-ml-py is missing or the driver does not respond.
        """
        return device_free_memory()

    def zeros(self, shape: Sequence[int], dtype: str) -> Tensor:
        """Returns zeros in device memory."""
        import paddle

        return paddle.zeros(list(shape), dtype)

    def to_device(self, host: NDArray[Any]) -> Tensor:
        """See the interface; copies through pinned memory, since `paddle.to_tensor` waits for the device."""
        import paddle

        target = paddle.empty(list(host.shape), str(host.dtype))
        self.write(target, host)
        return target

    def write(self, target: Tensor, host: NDArray[Any]) -> None:
        """See the interface; the host waits while an array too large for the pinned memory is copied."""
        import paddle

        if host.size and not _pinned_ring().write(target, host):
            target.copy_(paddle.to_tensor(host).reshape(target.shape), True)

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        """Returns a CUDA graph of `run`, with inputs and outputs at fixed addresses."""
        import paddle
        from paddle.device.cuda.graphs import CUDAGraph

        # Libraries choose algorithms and allocate workspaces on the first call, which a graph must not contain.
        run()
        paddle.device.synchronize()
        graph = CUDAGraph()
        graph.capture_begin()
        run()
        graph.capture_end()
        replay: Callable[[], None] = graph.replay
        return replay

    def get_worker_class(self) -> str:
        """Returns the worker that measures the memory left for the cache."""
        return "profiling"

    def get_attention_backend(self) -> str:
        """Returns the backend on Paddle's own operator."""
        return "block"

    def kv_cache_dtype(self, quantization: str | None) -> str:  # noqa: ARG002
        """Returns the type of the activations, in which the operator stores keys and values."""
        return self.model_dtype

    def check_and_update_config(self, fd_config: FDConfig) -> FDConfig:
        """Returns it unchanged; raises ValueError for an option or a model that the operators have no kernel for."""
        cache, quantization = fd_config.cache_config, fd_config.model_config.quantization
        if cache.block_size not in BLOCK_SIZES:
            allowed = ", ".join(map(str, BLOCK_SIZES))
            raise ValueError(f"block_size: {cache.block_size} is not allowed on a GPU; allowed are {allowed}")
        if cache.dtype != self.model_dtype:
            raise ValueError(f"kv_cache_dtype: {cache.dtype} is not allowed on a GPU; allowed is auto")
        if quantization == "w8a8":
            raise ValueError("quantization: w8a8 is not allowed on a GPU; allowed is w8a16 (8-bit weights)")
        ranks, devices = fd_config.parallel_config.tensor_parallel_size, device_count()
        if ranks > max(1, devices):
            raise ValueError(f"tensor_parallel_size: {ranks} is not allowed with {devices} GPUs, one a rank")
        head_dim = _head_dim(fd_config.model_config.hf_config)
        if head_dim not in HEAD_DIMS:
            allowed = ", ".join(map(str, HEAD_DIMS))
            raise ValueError(f"config.json: head_dim {head_dim} is not supported on a GPU; supported are {allowed}")
        return fd_config


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
    """Returns the free bytes of the first visible device, without a CUDA context; raises RuntimeError if unknown."""
    visible = visible_devices()
    device = visible[0] if visible else "0"
    try:
        with _nvml() as nvml:
            by_index, by_uuid = nvml.nvmlDeviceGetHandleByIndex, nvml.nvmlDeviceGetHandleByUUID
            handle = by_index(int(device)) if device.isdigit() else by_uuid(device)
            return int(nvml.nvmlDeviceGetMemoryInfo(handle).free)
    except RuntimeError as error:
        raise RuntimeError(f"the GPU's free memory is not known: {error}") from None


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


def _head_dim(hf_config: dict[str, Any]) -> int:
    heads = positive_int(hf_config, "num_attention_heads")
    return positive_int(hf_config, "head_dim", positive_int(hf_config, "hidden_size") // heads)


@functools.cache
def _cuda_build_is_installed() -> bool:
    try:
        importlib.metadata.distribution(CUDA_BUILD)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


@functools.cache
def _pinned_ring() -> PinnedRing:
    import paddle

    pinned = paddle.to_tensor(np.zeros(PINNED_BYTES, np.uint8), place=paddle.CUDAPinnedPlace())
    address = (ctypes.c_uint8 * PINNED_BYTES).from_address(pinned.data_ptr())
    # The ring exists until the process ends; so must the tensor that owns the memory.
    return PinnedRing(np.ctypeslib.as_array(address), _CudaCopies(pinned))


class _CudaCopies:
    """Copies on Paddle's current stream, by the driver: Paddle's own methods either wait or call back into the host."""

    def __init__(self, owner: Tensor) -> None:
        self._owner = owner
        self._driver = ctypes.CDLL("libcuda.so.1")

    def copy(self, target: Tensor, source: NDArray[np.uint8]) -> None:
        """Queues a copy of pinned bytes to the tensor's memory."""
        import paddle

        status = self._driver.cuMemcpyHtoDAsync_v2(
            ctypes.c_uint64(target.data_ptr()),
            ctypes.c_void_p(source.ctypes.data),
            ctypes.c_size_t(source.nbytes),
            ctypes.c_void_p(paddle.device.current_stream().stream_base.cuda_stream),
        )
        if status != 0:
            raise RuntimeError(f"a copy of {source.nbytes} bytes to the GPU failed with CUDA status {status}")

    def fence(self) -> Callable[[], object]:
        """Returns a function that waits until the copies queued so far are done."""
        import paddle

        event = paddle.device.cuda.Event()
        event.record()
        wait: Callable[[], object] = event.synchronize
        return wait
