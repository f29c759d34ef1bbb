"""Copies and reads through pinned memory, with a device that copies as late as it may."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fastdeploy_lp.platforms.pinned_memory import (
    ALIGNMENT,
    LEAST_READ_BYTES,
    MOST_BYTES,
    SEGMENT_BYTES,
    PinnedReads,
    PinnedRing,
)

Bytes = NDArray[np.uint8]
INT64, FLOAT64 = np.dtype(np.int64), np.dtype(np.float64)
# 256 rows of a mask for 151,936 tokens.
LARGE_MASK = 256 * 151_936 // 8


class LateFence:
    """The place after the copies that are queued when it is made."""

    def __init__(self, device: LateDevice) -> None:
        self._device = device
        self._reached = len(device.queue)

    def query(self) -> bool:
        return self._device.done >= self._reached

    def synchronize(self) -> None:
        self._device.waits += not self.query()
        self._device.run_until(self._reached)


class LateDevice:
    """Copies nothing before the host waits or reads; `waits` counts waits, `pinned` the bytes that it gave."""

    def __init__(self) -> None:
        self.queue: list[tuple[Bytes, Bytes]] = []
        self.done = self.waits = self.pinned = 0

    def allocate(self, size: int) -> Bytes:
        self.pinned += size
        return np.zeros(size, np.uint8)

    def copy(self, target: Bytes, source: Bytes) -> None:
        self.queue.append((target, source))

    def copy_back(self, target: Bytes, source: NDArray[Any]) -> None:
        # The device's own memory may change afterwards, in the order of its queue.
        self.queue.append((target, source.reshape(-1).copy().view(np.uint8)))

    def fence(self) -> LateFence:
        return LateFence(self)

    def run_until(self, end: int) -> None:
        for target, source in self.queue[self.done : end]:
            target[:] = source
        self.done = max(self.done, end)

    def read(self) -> None:
        """The read at the end of a step."""
        self.run_until(len(self.queue))


arrays = st.tuples(st.sampled_from(("int32", "int64", "float32", "float64", "bool")), st.integers(1, 40))


@given(
    st.lists(st.one_of(arrays, st.none()), max_size=60),
    st.integers(1, 4 * ALIGNMENT),
    st.integers(4 * ALIGNMENT, 12 * ALIGNMENT),
)
def test_every_array_arrives_as_it_was_when_it_was_written(
    wanted: list[tuple[str, int] | None], segment: int, most: int
) -> None:
    """However late the device copies, and though the caller reuses its arrays at once; None is a read."""
    device = LateDevice()
    ring = PinnedRing(device, segment=segment, most=most)
    random, written = np.random.default_rng(0), []
    for each in wanted:
        if each is None:
            device.read()
            continue
        dtype, count = each
        host = random.integers(0, 100, count).astype(dtype)
        target = np.zeros(host.nbytes, np.uint8)
        fits = ring.write(target, host)
        assert fits == (host.nbytes <= most)
        if fits:
            written.append((host.copy(), target))
        host[:] = 0
    device.read()
    for host, target in written:
        np.testing.assert_array_equal(target.view(host.dtype), host)


@given(st.integers(1, 8 * ALIGNMENT), st.booleans())
def test_arrays_of_any_shape_and_order_are_copied_by_rows(columns: int, turned: bool) -> None:
    device = LateDevice()
    ring = PinnedRing(device)
    host = np.arange(3 * columns, dtype=np.int32).reshape(3, columns)
    given_array = host.T if turned else host
    target = np.zeros(host.nbytes, np.uint8)
    assert ring.write(target, given_array)
    device.read()
    np.testing.assert_array_equal(target.view(np.int32), given_array.reshape(-1))


def send(ring: PinnedRing, size: int) -> None:
    assert ring.write(np.zeros(size, np.uint8), np.ones(size, np.uint8))


def test_a_step_never_waits_for_itself_and_the_ring_grows_to_what_a_step_sends() -> None:
    device = LateDevice()
    ring = PinnedRing(device, segment=4 * ALIGNMENT)
    pinned = []
    for _ in range(6):
        for _ in range(10):
            send(ring, ALIGNMENT)
        device.read()
        pinned.append(device.pinned // ALIGNMENT)
    assert device.waits == 0
    assert pinned == [12] * 6


def test_a_mask_of_256_rows_of_a_large_vocabulary_needs_no_wait() -> None:
    """Twice a step, since it is applied again after the chain."""
    device = LateDevice()
    ring = PinnedRing(device)
    for _ in range(20):
        for _ in range(2):
            send(ring, LARGE_MASK)
        device.read()
    assert device.waits == 0
    assert device.pinned <= 2 * SEGMENT_BYTES


def test_an_array_larger_than_a_segment_gets_one_of_its_size() -> None:
    device = LateDevice()
    ring = PinnedRing(device, segment=4 * ALIGNMENT)
    for _ in range(3):
        send(ring, 9 * ALIGNMENT)
        send(ring, ALIGNMENT)
        device.read()
    assert device.waits == 0
    # The segments that are too small for it are given back.
    assert device.pinned <= 40 * ALIGNMENT


def test_at_its_largest_it_waits_for_the_oldest_copies() -> None:
    device = LateDevice()
    ring = PinnedRing(device, segment=2 * ALIGNMENT, most=4 * ALIGNMENT)
    waits = []
    for _ in range(8):
        send(ring, ALIGNMENT)
        waits.append(device.waits)
    assert waits == [0, 0, 0, 0, 1, 1, 2, 2]
    assert device.pinned == 4 * ALIGNMENT


@pytest.mark.parametrize("size", [MOST_BYTES + 1, 5 * ALIGNMENT])
def test_a_larger_array_than_the_ring_is_not_copied(size: int) -> None:
    device = LateDevice()
    host = np.broadcast_to(np.uint8(0), size)
    assert not PinnedRing(device, most=min(MOST_BYTES, size - 1)).write(np.zeros(1, np.uint8), host)
    assert device.queue == []


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
    assert device.pinned == LEAST_READ_BYTES
    large = np.arange(LEAST_READ_BYTES, dtype=np.float64)
    np.testing.assert_array_equal(reads.begin(large, [LEAST_READ_BYTES], FLOAT64)(), large)
    assert device.pinned == LEAST_READ_BYTES + large.nbytes


def test_reads_that_overlap_have_memory_of_their_own() -> None:
    reads = PinnedReads(LateDevice())
    first, second = (reads.begin(np.array([number]), [1], INT64) for number in (1, 2))
    assert (second().tolist(), first().tolist()) == ([2], [1])


def test_nothing_is_read_as_nothing() -> None:
    assert PinnedReads(LateDevice()).begin(np.zeros(0, np.int64), [0, 3], INT64)().shape == (0, 3)
