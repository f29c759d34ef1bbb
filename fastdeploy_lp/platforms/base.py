"""The interface of a device platform."""

from __future__ import annotations

import contextlib
import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from numpy.typing import NDArray

from fastdeploy_lp.config.fd_config import DEFAULT_MAX_NUM_BATCHED_TOKENS

if TYPE_CHECKING:
    from paddle import Tensor

    from fastdeploy_lp.config import FDConfig


class DeviceFailure(enum.Enum):
    """Kind of a device's own failure, which any code may meet.

    OUT_OF_MEMORY: a call found too little memory; others may work. LOST: no further call of this process works.
    """

    OUT_OF_MEMORY = "out of memory"
    LOST = "lost"


class DeviceWatch(Protocol):
    """Measures the device's time between pairs of `start` and `stop`, without a wait."""

    def start(self) -> None:
        """Notes the place in the device's queue."""

    def stop(self) -> None:
        """Notes the place in the device's queue, after `start`."""

    def take(self) -> float:
        """Returns the seconds of the pairs that the device has passed since the last call."""


class Platform(ABC):
    """One kind of device: its name, its workers' needs, and the classes that run a model on it.

    Importing a platform never imports Paddle: the API process asks it for `worker_environment` before the worker,
    and so Paddle, starts. Classes are named as "module:Class", this package's own ones also by a short name, and
    imported in the worker alone.
    """

    name: str
    """Name in `FASTDEPLOY_LP_PLATFORM` and messages."""

    runs_compiled_ops: bool = False
    """True if the operators of `model_executor/ops` compute here instead of Paddle's own."""

    computes_on_host: bool = False
    """True if the model runs on the host's cores, so that concurrent host work slows it down."""

    model_dtype: str = "float32"
    """Element type of weights and activations in Paddle's operators."""

    weight_only_int8: bool = False
    """True if `--quantization` means Paddle's own product with 8-bit weights."""

    distributed_backend: str = "gloo"
    """Backend of Paddle's distributed runtime between ranks on devices of this kind."""

    default_block_size: int = 16
    """Default number of tokens in a block of the KV cache."""

    default_max_num_batched_tokens: int = DEFAULT_MAX_NUM_BATCHED_TOKENS
    """Default number of tokens that a step computes."""

    def configure(self, fd_config: FDConfig) -> None:  # noqa: B027 - most platforms have no options
        """Reads this process's options; called once in each process of a worker, before anything is on the device."""

    @classmethod
    def is_supported(cls) -> bool:
        """Returns True if this machine and this installation can serve on it."""
        return True

    @property
    def device_type(self) -> str:
        """Paddle's name of the device, for `paddle.set_device`."""
        return self.name

    @property
    def device_name(self) -> str:
        """Common name of the device, for the log."""
        return self.device_type

    def device_of_rank(self, rank: int) -> str:  # noqa: ARG002
        """Returns Paddle's name of the device of this rank of a shared model."""
        return self.device_type

    def communication_environment(self, rank: int) -> dict[str, str]:  # noqa: ARG002 - for overrides
        """Returns environment variables in which Paddle's distributed runtime finds the device of this rank."""
        return {}

    @abstractmethod
    def worker_environment(self) -> dict[str, str]:
        """Returns environment variables to set before the worker process imports Paddle."""

    def rank_environment(self, ranks: int) -> dict[str, str]:
        """Returns overrides of `worker_environment` for each of `ranks` that share a model and this host."""
        # Without it, Paddle's runtime logs every connection.
        return {"GLOG_minloglevel": "1"} if ranks > 1 else {}

    def data_parallel_environment(self, rank: int, size: int) -> dict[str, str]:  # noqa: ARG002 - for overrides
        """Returns additions to `worker_environment` for one of `size` workers on this host."""
        return {}

    @abstractmethod
    def free_memory(self) -> int:
        """Returns the bytes of device memory now available for weights and KV cache."""

    def check_and_update_config(self, fd_config: FDConfig) -> FDConfig:
        """Returns the configuration for this device; called in the API process, before anything starts: once, and once
        with the `model_config` of a draft model.

        May replace any part of it, and name classes in `device_config`; for names left None, the methods below decide.
        `cache_config.num_blocks` is 0 here; unless the platform sets it, it is computed afterwards from free memory.
        Raises ValueError for options that the device does not support.
        """
        return fd_config

    def get_worker_class(self) -> str:
        """Returns "default", "profiling", or a subclass of `fastdeploy_lp.worker.worker_base:WorkerBase`.

        "profiling" measures the memory left for the cache after a step of the largest size.
        """
        return "default"

    def get_model_runner_class(self) -> str:
        """Returns "default", or a subclass of `fastdeploy_lp.worker.model_runner_base:ModelRunnerBase`."""
        return "default"

    def get_attention_backend(self) -> str:
        """Returns the attention backend of models that Paddle's operators compute: "paddle", "block", "kernels", or a
        class."""
        return "paddle"

    def require_operator_context(self, fd_config: FDConfig) -> None:  # noqa: B027 - for overrides
        """Raises ValueError if Paddle's attention operator cannot compute the longest context.

        Called by backends that compute with it.
        """

    def get_row_ops(self) -> str:
        """Returns the operators on rows of logits: "compiled" (on the CPU), "kernels" (CUDA), or a class.

        A class is a subclass of `fastdeploy_lp.model_executor.ops.row_ops:RowOps`. Paddle's own operators compute where
        those are unavailable.
        """
        return "compiled"

    def get_communicator_class(self) -> str | None:
        """Returns the communicator class of ranks that share a model; None if models cannot be shared.

        "paddle", or a subclass of `fastdeploy_lp.model_executor.parallel.communicator:Communicator`.
        """
        return "paddle"

    def view_of(self, host: NDArray[Any]) -> Tensor | None:  # noqa: ARG002
        """Returns a tensor that shares the memory of a host array, or None if the device has separate memory."""
        return None

    @abstractmethod
    def zeros(self, shape: Sequence[int], dtype: str) -> Tensor:
        """Returns a large tensor of zeros on the device, of which only a part may ever be used."""

    def to_device(self, host: NDArray[Any]) -> Tensor:
        """Copies the array to a new tensor; the host does not wait for the device, and may change the array."""
        import paddle

        return paddle.to_tensor(host)

    def write(self, target: Tensor, host: NDArray[Any]) -> None:
        """Copies the array to a contiguous tensor of its size and type, in place; otherwise as `to_device`."""
        target.copy_(self.to_device(host).reshape(target.shape), True)

    def read_later(self, tensor: Tensor) -> Callable[[], NDArray[Any]]:
        """Begins to read a tensor; returns a function, to be called once, that returns its host copy.

        The host waits then, and on a device that runs while the host does, for nothing that was queued meanwhile.
        """
        read: Callable[[], NDArray[Any]] = tensor.numpy
        return read

    @property
    def runs_ahead(self) -> bool:
        """True if the device runs what is queued while the host does something else, and `read_later` allows it."""
        return False

    def capture(self, run: Callable[[], None]) -> Callable[[], None] | None:  # noqa: ARG002
        """Returns a cheaper replay of the device work of `run`, in the same memory; None if unsupported."""
        return None

    def torch_device(self) -> str:
        """Returns torch's name of the device, for processors written for torch."""
        return "cpu"

    def torch_stream(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context in which torch queues its work behind Paddle's, and Paddle behind torch's."""
        return contextlib.nullcontext()

    def watch(self) -> DeviceWatch | None:
        """Returns a watch of the device's time; None if calls return when their work is done."""
        return None

    def failure_of(self, error: BaseException) -> DeviceFailure | None:  # noqa: ARG002 - for overrides
        """Returns the device's failure that an exception reports; None if the code that raised it is at fault."""
        return None

    def kv_cache_dtype(self, quantization: str | None) -> str:
        """Returns the element type of keys and values for `--kv-cache-dtype auto`."""
        return "float32" if quantization is None else "float16"
