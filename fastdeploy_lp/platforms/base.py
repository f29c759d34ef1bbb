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


class Platform(ABC):
    """One kind of device: its Paddle name and what a worker on it needs.

    Importing a platform never imports Paddle: the API process asks it for `worker_environment` before the worker,
    and so Paddle, starts.
    """

    name: str
    """Paddle's device name, as `paddle.set_device` takes it."""

    runs_compiled_ops: bool = False
    """Whether the operators of `model_executor/ops` compute here rather than Paddle's own."""

    model_dtype: str = "float32"
    """Element type of weights and activations that Paddle's operators compute with."""

    weight_only_int8: bool = False
    """Whether `--quantization` means Paddle's own product with 8-bit weights."""

    default_block_size: int = 16
    """Tokens in a block of the KV cache unless the operator says otherwise."""

    @abstractmethod
    def worker_environment(self) -> dict[str, str]:
        """Environment variables that have to be set before the worker process imports Paddle."""

    @abstractmethod
    def free_memory(self) -> int:
        """Bytes of the device's memory that weights and KV cache could have now."""

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

    def get_attention_backend(self) -> str:
        """The attention backend of models that Paddle's operators compute, as "module:Class"."""
        return PADDLE_ATTENTION

    def kv_cache_dtype(self, quantization: str | None) -> str:
        """The element type of keys and values that `--kv-cache-dtype auto` stands for."""
        return "float32" if quantization is None else "float16"

    def check_and_update_config(self, fd_config: FDConfig) -> FDConfig:
        """The configuration as this platform serves it; raises ValueError naming an option that it does not have."""
        return fd_config
