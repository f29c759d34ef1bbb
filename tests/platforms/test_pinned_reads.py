"""Reads through pinned memory, from a device that copies as late as it may."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fastdeploy_lp.platforms.pinned_reads import LEAST_BYTES, PinnedReads

Bytes = NDArray[np.uint8]
INT64, FLOAT64 = np.dtype(np.int64), np.dtype(np.float64)


class LateFence:
    """The place after the copies that are queued when it is made."""

    def __init__(self, device: LateDevice) -> None:
        self._device = device
        self._reached = len(device.queue)

    def query(self) -> bool:
        return self._device.done >= self._reached

    def synchronize(self) -> None:
        for target, source in self._device.queue[self._device.done : self._reached]:
            target[:] = source.reshape(-1).view(np.uint8)
        self._device.done = max(self._device.done, self._reached)


class LateDevice:
    """Copies nothing before the host waits for it, and only what was queued before that fence."""

    def __init__(self) -> None:
        self.queue: list[tuple[Bytes, NDArray[np.int64]]] = []
        self.done = self.pinned = 0

    def allocate(self, size: int) -> Bytes:
        self.pinned += size
        return np.full(size, 0xFF, np.uint8)

    def copy_back(self, target: Bytes, source: NDArray[np.int64]) -> None:
        # The device's own memory may change afterwards, in the order of its queue.
        self.queue.append((target, source.copy()))

    def fence(self) -> LateFence:
        return LateFence(self)


def test_a_read_returns_what_was_there_and_waits_for_nothing_later() -> None:
    device, tokens = LateDevice(), np.arange(6)
    reads = PinnedReads(device)
    finish = reads.begin(tokens, [2, 3], INT64)
    tokens[:] = -1
    later = np.zeros(8, np.uint8)
    device.copy_back(later, np.array([7]))
    found = finish()
    assert found.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert device.done == 1
    assert not later.any()


def test_memory_is_used_again_and_earlier_results_stay() -> None:
    device = LateDevice()
    reads = PinnedReads(device)
    found = [reads.begin(np.array([number]), [1], INT64)() for number in range(5)]
    assert [each.tolist() for each in found] == [[0], [1], [2], [3], [4]]
    assert device.pinned == LEAST_BYTES
    large = np.arange(LEAST_BYTES, dtype=np.float64)
    np.testing.assert_array_equal(reads.begin(large, [LEAST_BYTES], FLOAT64)(), large)
    assert device.pinned == LEAST_BYTES + large.nbytes


def test_reads_that_overlap_have_memory_of_their_own() -> None:
    reads = PinnedReads(LateDevice())
    first, second = (reads.begin(np.array([number]), [1], INT64) for number in (1, 2))
    assert (second().tolist(), first().tolist()) == ([2], [1])


def test_nothing_is_read_as_nothing() -> None:
    assert PinnedReads(LateDevice()).begin(np.zeros(0, np.int64), [0, 3], INT64)().shape == (0, 3)
