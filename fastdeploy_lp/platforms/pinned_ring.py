"""Pinned host memory for asynchronous copies to a device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

ALIGNMENT = 64


class Copies(Protocol):
    """The device's queue of copies."""

    def copy(self, target: Any, source: NDArray[np.uint8]) -> None:
        """Queues a copy of `source`, whose contents must not change until a later fence has been waited for."""

    def fence(self) -> Callable[[], object]:
        """Returns a function that waits until the copies queued so far are done."""


class PinnedRing:
    """Two halves of `memory` uint8 [bytes], one of which is filled while copies read from the other.

    A half is refilled after the copies from it are done. Since a step ends with a read that depends on them, they are
    long done when the ring wraps around, and the wait takes no time.
    """

    def __init__(self, memory: NDArray[np.uint8], copies: Copies) -> None:
        self._half = len(memory) // 2
        self._memory = memory
        self._copies = copies
        self._fences: list[Callable[[], object] | None] = [None, None]
        self._current, self._used = 0, 0

    def write(self, target: Any, host: NDArray[Any]) -> bool:
        """Queues a copy of the array to the target; returns False, and copies nothing, if it exceeds a half."""
        size = host.nbytes
        if size > self._half:
            return False
        if self._used + size > self._half:
            self._turn()
        start = self._current * self._half + self._used
        source = self._memory[start : start + size]
        source[:] = np.ascontiguousarray(host).reshape(-1).view(np.uint8)
        self._used += -(-size // ALIGNMENT) * ALIGNMENT
        self._copies.copy(target, source)
        return True

    def _turn(self) -> None:
        self._fences[self._current] = self._copies.fence()
        self._current, self._used = 1 - self._current, 0
        fence, self._fences[self._current] = self._fences[self._current], None
        if fence is not None:
            fence()
