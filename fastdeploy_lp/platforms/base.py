"""The interface of a device platform."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

if TYPE_CHECKING:
    from paddle import Tensor


class Platform(ABC):
    """One kind of device: its Paddle name and what a worker on it needs.

    Importing a platform never imports Paddle: the API process asks it for `worker_environment` before the worker,
    and so Paddle, starts.
    """

    name: str
    """Paddle's device name, as `paddle.set_device` takes it."""

    runs_compiled_ops: bool = False
    """Whether the operators of `model_executor/ops` compute here rather than Paddle's own."""

    computes_on_host: bool = False
    """Whether the model runs on the host's own cores, so that what the host does meanwhile slows it down."""

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
