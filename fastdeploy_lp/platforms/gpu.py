"""The GPU platform: NVIDIA devices, through a CUDA build of Paddle. Not yet run on a GPU."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fastdeploy_lp.checkpoint.config_field import positive_int
from fastdeploy_lp.platforms.base import DeviceFailure, DeviceWatch, Platform
from fastdeploy_lp.platforms.cuda_build import CUDA_BUILD, cuda_build_is_installed, missing_libraries
from fastdeploy_lp.platforms.cuda_errors import cuda_failure
from fastdeploy_lp.platforms.cuda_limits import require_context, require_devices, require_weight_only
from fastdeploy_lp.platforms.nvidia_driver import (
    DEVICES_VARIABLE,
    NVML_MISSING,
    Capability,
    compute_capabilities,
    device_count,
    device_free_memory,
    visible_devices,
)
from fastdeploy_lp.platforms.pinned_memory import Bytes, Fence, PinnedReads, PinnedRing

if TYPE_CHECKING:
    from paddle import Tensor

    from fastdeploy_lp.config import FDConfig


BLOCK_SIZES = (32, 64, 128)
HEAD_DIMS = (32, 64, 96, 128)
ENVIRONMENT = {
    # CUDA graphs retain the memory that they captured; only this allocator supports that.
    "FLAGS_allocator_strategy": "auto_growth",
    # The operator's variant for grouped heads supports only some group sizes; the plain one supports all.
    "FLAGS_use_xqa_optim": "0",
    # CUDA records no graph on its default stream.
    "FLAGS_use_default_stream": "0",
    # NVML counts devices in this order, CUDA by default from the fastest one on.
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
}


class GpuPlatform(Platform):
    """bfloat16, attention by our kernels and `block_multihead_attention`, 8-bit weights, CUDA graphs.

    Written against the signatures of Paddle 3.3 and the sources of its kernels; not yet run on a GPU.
    """

    name = "gpu"
    model_dtype = "bfloat16"
    weight_only_int8 = True
    distributed_backend = "nccl"
    default_block_size = 64
    # A step of a few hundred tokens leaves most of a GPU idle.
    default_max_num_batched_tokens = 4096

    def __init__(self) -> None:
        self._pins_memory = self._overlaps = True

    def configure(self, fd_config: FDConfig) -> None:
        """See the interface."""
        device = fd_config.device_config
        self._pins_memory, self._overlaps = device.pinned_memory, device.overlap

    @classmethod
    def is_supported(cls) -> bool:
        """Returns True if a CUDA build of Paddle is installed and the driver reports a device; imports no Paddle."""
        return cls._why_not_supported() is None

    @classmethod
    def what_is_missing(cls) -> str | None:
        """Returns the reason why this machine or installation cannot serve on it; None if it can.

        Missing libraries are a reason, but with a device no reason to serve on the CPU.
        """
        return cls._why_not_supported() or missing_libraries()

    @classmethod
    def _why_not_supported(cls) -> str | None:
        if not cuda_build_is_installed():
            return f"the package {CUDA_BUILD} is not installed"
        if importlib.util.find_spec("pynvml") is None:
            return NVML_MISSING
        return None if device_count() > 0 else "NVIDIA's driver shows no device"

    def device_of_rank(self, rank: int) -> str:
        """Assigns the visible GPUs to ranks in order."""
        return f"{self.device_type}:{rank}"

    def communication_environment(self, rank: int) -> dict[str, str]:
        """Names the rank's GPU: Paddle's runtime refuses to join a group without it, and puts all ranks on GPU 0."""
        return {"FLAGS_selected_gpus": str(rank)}

    def worker_environment(self) -> dict[str, str]:
        """Returns the order of devices and Paddle's flags; the caller's environment cannot override them."""
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
        """See the interface; without pinned memory the host waits for the device."""
        import paddle

        if host.size and not (self._pins_memory and self._ring.write(target, host)):
            target.copy_(paddle.to_tensor(host).reshape(target.shape), True)

    def read_later(self, tensor: Tensor) -> Callable[[], NDArray[Any]]:
        """See the interface; a read of Paddle's waits for all that is queued."""
        if not self._pins_memory:
            return super().read_later(tensor)
        return self._reads.begin(tensor, tensor.shape, np.dtype(str(tensor.dtype).rpartition(".")[2]))

    @property
    def runs_ahead(self) -> bool:
        """See the interface; the configuration may do without."""
        return self._pins_memory and self._overlaps

    @functools.cached_property
    def _reads(self) -> PinnedReads:
        return PinnedReads(_CudaCopies())

    @functools.cached_property
    def _ring(self) -> PinnedRing:
        return PinnedRing(_CudaCopies())

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        """Returns a CUDA graph of `run`, with inputs and outputs at fixed addresses.

        All graphs share one pool of memory, so that none may run while another one's intermediate results are in use.
        """
        import paddle
        from paddle.device.cuda.graphs import CUDAGraph

        # Libraries choose algorithms and allocate workspaces on the first call, which a graph must not contain.
        run()
        paddle.device.synchronize()
        graph = CUDAGraph(place=paddle.CUDAPlace(_current_device()), pool_id=self._graph_memory)
        graph.capture_begin()
        run()
        graph.capture_end()
        replay: Callable[[], None] = graph.replay
        return replay

    @functools.cached_property
    def _graph_memory(self) -> int:
        """Number of the pool in which all graphs have their intermediate results."""
        from paddle.base.core import CUDAGraph

        return int(CUDAGraph.gen_new_memory_pool_id())

    def torch_device(self) -> str:
        """See the interface; raises RuntimeError if torch has no CUDA."""
        import torch

        if not torch.cuda.is_available():
            raise RuntimeError(f"torch {torch.__version__} has no CUDA; install a build of it for the GPU's driver")
        return f"cuda:{_current_device()}"

    @contextlib.contextmanager
    def torch_stream(self) -> Iterator[None]:
        """See the interface: in its own stream, torch would not wait for Paddle's results."""
        import torch

        with torch.cuda.stream(torch.cuda.ExternalStream(_current_stream(), device=self.torch_device())):
            yield

    def watch(self) -> DeviceWatch:
        """See the interface; by events in Paddle's stream."""
        return _EventWatch()

    def failure_of(self, error: BaseException) -> DeviceFailure | None:
        """See the interface; CUDA reports an error in whatever call comes next."""
        return cuda_failure(error)

    def get_worker_class(self) -> str:
        """Returns the worker that measures the memory left for the cache."""
        return "profiling"

    def get_attention_backend(self) -> str:
        """Returns the backend on our kernels and, for new prompts, Paddle's own operator."""
        return "kernels"

    def get_row_ops(self) -> str:
        """Returns the operators on CUDA kernels."""
        return "kernels"

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
        parallel, devices = fd_config.parallel_config, device_count()
        ranks = parallel.tensor_parallel_size
        if ranks > max(1, devices):
            raise ValueError(f"tensor_parallel_size: {ranks} is not allowed with {devices} GPUs, one a rank")
        head_dim = _head_dim(fd_config.model_config.hf_config)
        if head_dim not in HEAD_DIMS:
            allowed = ", ".join(map(str, HEAD_DIMS))
            raise ValueError(f"config.json: head_dim {head_dim} is not supported on a GPU; supported are {allowed}")
        self._require_capabilities(fd_config, _capabilities(fd_config))
        missing = missing_libraries()
        if missing:
            raise ValueError(f"{missing}; install them, or select the CPU by FASTDEPLOY_LP_PLATFORM=cpu")
        return fd_config

    def _require_capabilities(self, fd_config: FDConfig, capabilities: list[Capability]) -> None:
        require_devices(capabilities)
        if fd_config.model_config.quantization is not None:
            require_weight_only(capabilities)
        if fd_config.device_config.attention_backend == "block":
            self.require_operator_context(fd_config)

    def require_operator_context(self, fd_config: FDConfig) -> None:
        """See the interface; the operator keeps a score for each token of a context in shared memory."""
        length, block_size = fd_config.model_config.max_model_len, fd_config.cache_config.block_size
        require_context(_capabilities(fd_config), length, block_size)


def _capabilities(fd_config: FDConfig) -> list[Capability]:
    parallel = fd_config.parallel_config
    return compute_capabilities(max(parallel.tensor_parallel_size, parallel.data_parallel_size))


def _head_dim(hf_config: dict[str, Any]) -> int:
    heads = positive_int(hf_config, "num_attention_heads")
    return positive_int(hf_config, "head_dim", positive_int(hf_config, "hidden_size") // heads)


def _current_device() -> int:
    """Returns the number of the GPU on which this process computes, among the visible ones."""
    import paddle

    return int(paddle.device.get_device().partition(":")[2] or 0)


def _current_stream() -> int:
    """Returns the address of the CUDA stream on which Paddle computes."""
    import paddle

    return int(paddle.device.current_stream().stream_base.cuda_stream)


class _EventWatch:
    """Pairs of events in Paddle's current stream, oldest first."""

    def __init__(self) -> None:
        self._pairs: deque[tuple[Any, Any]] = deque()
        self._started: Any = None

    def start(self) -> None:
        """See `DeviceWatch`."""
        self._started = self._event()

    def stop(self) -> None:
        """See `DeviceWatch`."""
        self._pairs.append((self._started, self._event()))

    def take(self) -> float:
        """See `DeviceWatch`."""
        milliseconds = 0.0
        while self._pairs and self._pairs[0][1].query():
            begin, end = self._pairs.popleft()
            milliseconds += begin.elapsed_time(end)
        return milliseconds / 1000

    def _event(self) -> Any:
        import paddle

        event = paddle.device.Event(enable_timing=True)
        event.record()
        return event


class _CudaCopies:
    """Copies on Paddle's current stream, by the driver: Paddle's own methods either wait or call back into the host."""

    def __init__(self) -> None:
        self._driver = ctypes.CDLL("libcuda.so.1")

    def allocate(self, size: int) -> Bytes:
        """Returns pinned memory of Paddle's."""
        import paddle

        pinned = paddle.to_tensor(np.zeros(size, np.uint8), place=paddle.CUDAPinnedPlace())
        memory = (ctypes.c_uint8 * size).from_address(pinned.data_ptr())
        # The array keeps the object that it is a view of, and so the tensor that owns the memory.
        memory.owner = pinned  # type: ignore[attr-defined]
        return np.ctypeslib.as_array(memory)

    def copy(self, target: Tensor, source: Bytes) -> None:
        """Queues a copy of pinned bytes to the tensor's memory."""
        device, host = ctypes.c_uint64(target.data_ptr()), ctypes.c_void_p(source.ctypes.data)
        self._copy("cuMemcpyHtoDAsync_v2", device, host, source.nbytes)

    def copy_back(self, target: Bytes, source: Tensor) -> None:
        """Queues a copy of the tensor's memory to pinned bytes."""
        host, device = ctypes.c_void_p(target.ctypes.data), ctypes.c_uint64(source.data_ptr())
        self._copy("cuMemcpyDtoHAsync_v2", host, device, target.nbytes)

    def _copy(self, function: str, target: object, source: object, size: int) -> None:
        stream = ctypes.c_void_p(_current_stream())
        status = getattr(self._driver, function)(target, source, ctypes.c_size_t(size), stream)
        if status != 0:
            raise RuntimeError(f"{function}: a copy of {size} bytes failed with CUDA status {status}")

    def fence(self) -> Fence:
        """Returns an event after the copies queued so far."""
        import paddle

        event: Fence = paddle.device.cuda.Event()
        event.record()  # type: ignore[attr-defined]
        return event
