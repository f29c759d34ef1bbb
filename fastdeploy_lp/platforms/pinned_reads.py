"""Reads from a device through pinned host memory, which wait for nothing that is queued after them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fastdeploy_lp.platforms.pinned_ring import Bytes, Fence

# The tokens of a step with some logprobs; a larger read gets more.
LEAST_BYTES = 64 << 10


class ReadingCopies(Protocol):
    """The device's queue of copies to the host."""

    def allocate(self, size: int) -> Bytes:
        """Returns pinned memory [size], owned by the array."""

    def copy_back(self, target: Bytes, source: Any) -> None:
        """Queues a copy of a tensor to `target`, whose contents are unknown until the device has reached a fence."""

    def fence(self) -> Fence:
        """Returns the place after everything queued so far."""


class PinnedReads:
    """One piece of pinned memory for one read at a time; reads that overlap get their own."""

    def __init__(self, copies: ReadingCopies) -> None:
        self._copies = copies
        self._free: Bytes = np.empty(0, np.uint8)

    def begin(self, source: Any, shape: list[int], dtype: np.dtype[Any]) -> Callable[[], NDArray[Any]]:
        """Queues a copy of a tensor; returns a function, to be called once, that waits for it and returns an array."""
        size = int(np.prod(shape)) * dtype.itemsize
        memory, self._free = self._free, np.empty(0, np.uint8)
        if len(memory) < size:
            memory = self._copies.allocate(max(size, LEAST_BYTES))
        self._copies.copy_back(memory[:size], source)
        fence = self._copies.fence()

        def finish() -> NDArray[Any]:
            fence.synchronize()
            found: NDArray[Any] = memory[:size].view(dtype).reshape(shape).copy()
            self._free = memory
            return found

        return finish
