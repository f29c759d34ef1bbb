"""The interface of a device platform."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

if TYPE_CHECKING:
    from paddle import Tensor

    from fastdeploy_lp.config import FDConfig

PADDLE_ATTENTION = "fastdeploy_lp.model_executor.layers.attention.paddle_attention:PaddleAttentionBackend"
COMMUNICATOR = "fastdeploy_lp.model_executor.parallel.paddle_communicator:PaddleCommunicator"
WORKER = "fastdeploy_lp.worker.worker:Worker"
MODEL_RUNNER = "fastdeploy_lp.worker.model_runner:ModelRunner"


class Platform(ABC):
    """One kind of device: its name, what a worker on it needs, and which classes run a model there.

    Importing a platform never imports Paddle: the API process asks it for `worker_environment` before the worker,
    and so Paddle, starts. Classes are named as "module:Class" and imported in the worker alone.
    """

    name: str
    """What `FASTDEPLOY_LP_PLATFORM` and messages call it."""

    runs_compiled_ops: bool = False
    """Whether the operators of `model_executor/ops` compute here rather than Paddle's own."""

    computes_on_host: bool = False
    """Whether the model runs on the host's own cores, so that what the host does meanwhile slows it down."""

    model_dtype: str = "float32"
    """Element type of weights and activations that Paddle's operators compute with."""

    weight_only_int8: bool = False
    """Whether `--quantization` means Paddle's own product with 8-bit weights."""

    distributed_backend: str = "gloo"
    """What Paddle's distributed runtime talks through between ranks on devices of this kind."""

    default_block_size: int = 16
    """Tokens in a block of the KV cache unless the operator says otherwise."""

    @classmethod
    def is_supported(cls) -> bool:
        """Whether this machine and this installation can serve on it."""
        return True

    @property
    def device_type(self) -> str:
        """Paddle's name of the device, as `paddle.set_device` takes it."""
        return self.name

    @property
    def device_name(self) -> str:
        """What people call the device, for the log."""
        return self.device_type

    def device_of_rank(self, rank: int) -> str:  # noqa: ARG002
        """Paddle's name of the device that this rank of those that share a model has."""
        return self.device_type

    @abstractmethod
    def worker_environment(self) -> dict[str, str]:
        """Environment variables that have to be set before the worker process imports Paddle."""

    def rank_environment(self, ranks: int) -> dict[str, str]:
        """What takes the place of parts of `worker_environment` in each of `ranks` that share a model and this host."""
        # Paddle's runtime reports every connection otherwise.
        return {"GLOG_minloglevel": "1"} if ranks > 1 else {}

    def data_parallel_environment(self, rank: int, size: int) -> dict[str, str]:  # noqa: ARG002 - for those who differ
        """What the environment of one of `size` workers on this host has on top of `worker_environment`."""
        return {}

    @abstractmethod
    def free_memory(self) -> int:
        """Bytes of the device's memory that weights and KV cache could have now."""

    def check_and_update_config(self, fd_config: FDConfig) -> FDConfig:
        """The configuration as it shall be on this device; called once, in the API process, before anything starts.

        May replace any part of it, and name classes in `device_config`; names that stay None are asked for below.
        `cache_config.num_blocks` is 0 here, and is settled behind it from the memory that is free, unless the platform
        sets it. Raises ValueError for what the device cannot do.
        """
        return fd_config

    def get_worker_class(self) -> str:
        """A subclass of `fastdeploy_lp.worker.worker_base:WorkerBase`."""
        return WORKER

    def get_model_runner_class(self) -> str:
        """A subclass of `fastdeploy_lp.worker.model_runner_base:ModelRunnerBase`."""
        return MODEL_RUNNER

    def get_attention_backend(self) -> str:
        """The attention backend of models that Paddle's operators compute, as "module:Class"."""
        return PADDLE_ATTENTION

    def get_communicator_class(self) -> str | None:
        """What ranks that share a model talk through; None where a model cannot be shared.

        A subclass of `fastdeploy_lp.model_executor.parallel.communicator:Communicator`.
        """
        return COMMUNICATOR

    def view_of(self, host: NDArray[Any]) -> Tensor | None:  # noqa: ARG002
        """A tensor in the very memory of a host array, or None where the device has memory of its own."""
        return None

    @abstractmethod
    def zeros(self, shape: Sequence[int], dtype: str) -> Tensor:
        """A large tensor of zeros on the device, of which only a part may ever be used."""

    def to_device(self, host: NDArray[Any]) -> Tensor:
        """A new tensor with the array's elements; the host does not wait for the device, and may change the array."""
        import paddle

        return paddle.to_tensor(host)

    def write(self, target: Tensor, host: NDArray[Any]) -> None:
        """The array's elements into a contiguous tensor of its size and type, in place; otherwise as `to_device`."""
        target.copy_(self.to_device(host).reshape(target.shape), True)

    def capture(self, run: Callable[[], None]) -> Callable[[], None] | None:  # noqa: ARG002
        """What asks the device for the same work as `run` at less cost, in the same memory; None if nothing does."""
        return None

    def kv_cache_dtype(self, quantization: str | None) -> str:
        """The element type of keys and values that `--kv-cache-dtype auto` stands for."""
        return "float32" if quantization is None else "float16"
