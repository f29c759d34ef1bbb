"""Pinned host memory: copies to a device that the host does not wait for, and reads that wait for nothing later."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

ALIGNMENT = 64
# A mask of 256 rows of 151,936 tokens is 5 MB, and a step may send several such arrays.
SEGMENT_BYTES = 64 << 20
# No step sends more; pinned memory is lost to the rest of the machine.
MOST_BYTES = 1 << 30
# Memory of a read: the tokens of a step with some logprobs; a larger read gets more.
LEAST_READ_BYTES = 64 << 10

Bytes = NDArray[np.uint8]


class Fence(Protocol):
    """A place in the device's queue."""

    def query(self) -> bool:
        """Returns True if the device has reached it; does not wait."""

    def synchronize(self) -> object:
        """Waits until the device has reached it."""


class Copies(Protocol):
    """The device's queue of copies."""

    def allocate(self, size: int) -> Bytes:
        """Returns pinned memory [size], owned by the array."""

    def copy(self, target: Any, source: Bytes) -> None:
        """Queues a copy of `source`, whose contents must not change until the device has reached a later fence."""

    def copy_back(self, target: Bytes, source: Any) -> None:
        """Queues a copy of a tensor to `target`, which must not be read until the device has reached a later fence."""

    def fence(self) -> Fence:
        """Returns the place after everything queued so far."""


@dataclass
class _Segment:
    """Full memory, and the fence after its last copy."""

    memory: Bytes
    fence: Fence


class PinnedRing:
    """Segments of pinned memory, filled one after the other.

    A segment is filled again once the device has done the copies from it. The copies of a step wait in the device's
    queue for the model, so a step that fills a segment gets another one instead of waiting for itself. So the ring
    grows to what a few steps send. At `most` bytes, the host waits for the oldest segment.
    """

    def __init__(self, copies: Copies, *, segment: int = SEGMENT_BYTES, most: int = MOST_BYTES) -> None:
        self._copies = copies
        self._segment = segment
        self._most = most
        self._current: Bytes = np.empty(0, np.uint8)
        self._used = 0
        self._full: deque[_Segment] = deque()

    def write(self, target: Any, host: NDArray[Any]) -> bool:
        """Queues a copy of the array to the target; returns False, and copies nothing, if it exceeds the ring."""
        size = host.nbytes
        if size > self._most:
            return False
        if self._used + size > len(self._current):
            self._turn(size)
        source = self._current[self._used : self._used + size]
        source[:] = np.ascontiguousarray(host).reshape(-1).view(np.uint8)
        self._used += -(-size // ALIGNMENT) * ALIGNMENT
        self._copies.copy(target, source)
        return True

    def _turn(self, size: int) -> None:
        """Makes a segment of at least `size` bytes the current one."""
        if len(self._current):
            self._full.append(_Segment(self._current, self._copies.fence()))
            self._current = self._current[:0]
        self._current, self._used = self._free_segment(size), 0

    def _free_segment(self, size: int) -> Bytes:
        wanted = min(max(self._segment, size), self._most)
        while self._full:
            oldest = self._full[0]
            if not oldest.fence.query():
                if sum(len(each.memory) for each in self._full) + wanted <= self._most:
                    break
                oldest.fence.synchronize()
            self._full.popleft()
            # A smaller one is given back, for a larger one in its place.
            if len(oldest.memory) >= size:
                return oldest.memory
        return self._copies.allocate(wanted)


class PinnedReads:
    """One piece of pinned memory for one read at a time; reads that overlap get their own."""

    def __init__(self, copies: Copies) -> None:
        self._copies = copies
        self._free: Bytes = np.empty(0, np.uint8)

    def begin(self, source: Any, shape: list[int], dtype: np.dtype[Any]) -> Callable[[], NDArray[Any]]:
        """Queues a copy of a tensor; returns a function, to be called once, that waits for it and returns an array."""
        size = int(np.prod(shape)) * dtype.itemsize
        memory, self._free = self._free, np.empty(0, np.uint8)
        if len(memory) < size:
            memory = self._copies.allocate(max(size, LEAST_READ_BYTES))
        self._copies.copy_back(memory[:size], source)
        fence = self._copies.fence()

        def finish() -> NDArray[Any]:
            fence.synchronize()
            found: NDArray[Any] = memory[:size].view(dtype).reshape(shape).copy()
            self._free = memory
            return found

        return finish
