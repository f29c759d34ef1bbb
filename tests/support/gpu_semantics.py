"""Paddle's CUDA kernels where they differ from those of the CPU: other results, and hidden waits for the device.

After the sources of Paddle 3.3.1: `max` and `min` begin with the lowest and the highest float, `argmax` and `topk`
never take a logit of -inf and leave its id unset, and a cumulated sum or a sort of one row goes through a library that
allocates memory.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import paddle
import pytest
from numpy.typing import NDArray
from paddle import Tensor

UNSET = -1
FLOATS = {paddle.float32: np.finfo(np.float32), paddle.float64: np.finfo(np.float64)}
# The size of their result is known on the device only.
OF_UNKNOWN_SIZE = ("nonzero", "masked_select", "unique")


@contextmanager
def gpu_semantics(on_wait: Callable[[str], object] = lambda _: None) -> Iterator[None]:
    """Makes Paddle compute as on a GPU; `on_wait` gets the name of each operator for which the host would wait."""
    with pytest.MonkeyPatch.context() as patch:
        for name, made in {
            "max": _bounded(paddle.max, -np.inf),
            "min": _bounded(paddle.min, np.inf),
            "argmax": _argmax,
            "topk": _topk,
            "cumsum": _waiting(paddle.cumsum, "cumsum", on_wait),
            "argsort": _waiting(paddle.argsort, "argsort", on_wait),
            "sort": _waiting(paddle.sort, "sort", on_wait),
            **{name: _always_waiting(getattr(paddle, name), name, on_wait) for name in OF_UNKNOWN_SIZE},
        }.items():
            patch.setattr(paddle, name, made)
            patch.setattr(Tensor, name, made)
        yield


def _bounded(reduce: Callable[..., Tensor], worst: float) -> Callable[..., Tensor]:
    def reduced(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        found = reduce(x, *args, **kwargs)
        if x.dtype not in FLOATS:
            return found
        first = float(FLOATS[x.dtype].min if worst < 0 else FLOATS[x.dtype].max)
        return paddle.where(found == worst, paddle.full_like(found, first), found)

    return reduced


argmax_on_cpu, topk_on_cpu = paddle.argmax, paddle.topk


def _argmax(x: Tensor, axis: int | None = None, keepdim: bool = False, dtype: str = "int64") -> Tensor:
    found = argmax_on_cpu(x, axis, keepdim, dtype)
    if x.dtype not in FLOATS or axis is None:
        return found
    nothing = (x == -np.inf).all(axis=axis, keepdim=keepdim)
    return paddle.where(nothing, paddle.full_like(found, UNSET), found)


def _topk(x: Tensor, k: int, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    values, ids = topk_on_cpu(x, k, *args, **kwargs)
    return values, paddle.where(values == -np.inf, paddle.full_like(ids, UNSET), ids)


def _waiting(call: Callable[..., Tensor], name: str, on_wait: Callable[[str], object]) -> Callable[..., Tensor]:
    def called(x: Tensor, axis: int = -1, *args: Any, **kwargs: Any) -> Tensor:
        if x.size == x.shape[axis]:
            on_wait(f"{name} of one row")
        return call(x, axis, *args, **kwargs)

    return called


def _always_waiting(call: Callable[..., Any], name: str, on_wait: Callable[[str], object]) -> Callable[..., Any]:
    def called(*args: Any, **kwargs: Any) -> Any:
        on_wait(name)
        return call(*args, **kwargs)

    return called


class QueueFence:
    """A place in the queue of a device that has run everything queued before its last read.

    reads: results of copies to the host, each with its place; they are there once the host has waited for this fence.
    """

    def __init__(self, queue: DeviceQueue, reads: list[tuple[NDArray[np.uint8], NDArray[np.uint8]]]) -> None:
        self._queue = queue
        self._number = queue.reads
        self._reads = reads

    def query(self) -> bool:
        return self._queue.reads > self._number

    def synchronize(self) -> None:
        if self._reads:
            self._queue.reads += 1
            self._queue.on_read()
        elif not self.query():
            self._queue.on_wait("a fence of this step")
        for target, found in self._reads:
            target[:] = found


class DeviceQueue:
    """Copies to the device at once, and counts `reads`: until the next one, no copy counts as done."""

    def __init__(self, on_wait: Callable[[str], object] = lambda _: None) -> None:
        self.on_wait = on_wait
        self.on_read: Callable[[], object] = lambda: None
        self.reads = 0
        self.pinned = 0
        self._reads: list[tuple[NDArray[np.uint8], NDArray[np.uint8]]] = []

    def allocate(self, size: int) -> NDArray[np.uint8]:
        self.pinned += size
        return np.zeros(size, np.uint8)

    def copy(self, target: Tensor, source: NDArray[np.uint8]) -> None:
        ctypes.memmove(target.data_ptr(), source.ctypes.data, source.nbytes)

    def copy_back(self, target: NDArray[np.uint8], source: Tensor) -> None:
        found = np.empty_like(target)
        ctypes.memmove(found.ctypes.data, source.data_ptr(), target.nbytes)
        target[:] = 0xFF
        self._reads.append((target, found))

    def fence(self) -> QueueFence:
        reads, self._reads = self._reads, []
        return QueueFence(self, reads)
