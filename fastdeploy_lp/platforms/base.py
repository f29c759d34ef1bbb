"""The interface of a device platform."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

if TYPE_CHECKING:
    from paddle import Tensor

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

    def get_attention_backend(self) -> str:
        """The attention backend of models that Paddle's operators compute, as "module:Class"."""
        return PADDLE_ATTENTION
