"""Tensors in host memory."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from paddle import Tensor


def in_host_memory(tensor: Tensor) -> bool:
    """Returns True if numpy can view the tensor's memory."""
    return bool(tensor.place.is_cpu_place())


def on_host(values: Tensor | NDArray[Any]) -> NDArray[Any]:
    """Returns values on the host: a read-only view of a tensor's memory where numpy can view it, else a copy."""
    if isinstance(values, np.ndarray):
        return values
    return np.asarray(np.from_dlpack(values) if in_host_memory(values) else values.numpy())


def writable_view(logits: Tensor) -> NDArray[Any] | None:
    """Returns a view of the logits' memory [rows, vocab_size], None if numpy cannot write it."""
    if not in_host_memory(logits):
        return None
    try:
        host = np.from_dlpack(logits)
    except (BufferError, RuntimeError):  # for example bfloat16, which numpy lacks
        return None
    # Before numpy 2.1 such views are read-only; without contiguous rows `reshape` would copy.
    return host if host.flags.writeable and host.flags.c_contiguous else None


class HostRow(np.ndarray[Any, Any]):
    """A row of a HostTensor: an array that also has a tensor's reading methods."""

    def numpy(self) -> NDArray[Any]:
        """Returns a copy."""
        return np.array(self)

    def cpu(self) -> HostRow:
        """Returns itself."""
        return self

    def cast(self, dtype: str) -> NDArray[Any]:
        """Returns the same numbers in another type."""
        return self.astype(str(dtype).removeprefix("paddle."))


def host_tensor(array: NDArray[Any]) -> Any:
    """Returns a Paddle tensor on the CPU that shares the memory of `array`, for any Paddle operator.

    Iteration and truth value of a plain tensor cost 20 to 50 µs per row, which a processor pays for every slot in
    every step. Iteration over this one yields HostRows, in less than 1 µs each.
    """
    return _tensor_class()(array)


@cache
def _tensor_class() -> type:
    import paddle

    class HostTensor(paddle.Tensor):  # type: ignore[misc]
        def __init__(self, array: NDArray[Any]) -> None:
            super().__init__(value=array, place=paddle.CPUPlace(), zero_copy=True)
            self._array = array

        def __iter__(self) -> Iterator[HostRow]:
            return iter(self._array.view(HostRow))

        def __bool__(self) -> bool:
            return bool(self._array)

    return HostTensor
