"""The ring of pinned memory against a device that copies as late as it may."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fastdeploy_lp.platforms.gpu import ALIGNMENT, PinnedRing


class LateDevice:
    """Copies nothing before somebody waits for it; `waits` counts who had to."""

    def __init__(self) -> None:
        self._queue: list[tuple[NDArray[np.uint8], NDArray[np.uint8]]] = []
        self.done = 0
        self.waits = 0

    def copy(self, target: NDArray[np.uint8], source: NDArray[np.uint8]) -> None:
        self._queue.append((target, source))

    def fence(self) -> Callable[[], object]:
        reached = len(self._queue)

        def wait() -> None:
            self.waits += 1
            self.run_until(reached)

        return wait

    def run_until(self, end: int) -> None:
        for target, source in self._queue[self.done : end]:
            target[:] = source
        self.done = max(self.done, end)

    def finish(self) -> None:
        self.run_until(len(self._queue))


arrays = st.tuples(st.sampled_from(("int32", "int64", "float32", "float64", "bool")), st.integers(1, 40))


@given(st.lists(arrays, max_size=60), st.integers(4 * ALIGNMENT, 8 * ALIGNMENT))
def test_every_array_arrives_as_it_was_when_it_was_written(wanted: list[tuple[str, int]], size: int) -> None:
    """However late the device copies, and though the caller reuses its arrays at once."""
    device = LateDevice()
    ring = PinnedRing(np.zeros(size, np.uint8), device)
    random, written = np.random.default_rng(0), []
    for dtype, count in wanted:
        host = random.integers(0, 100, count).astype(dtype)
        target = np.zeros(host.nbytes, np.uint8)
        fits = ring.write(target, host)
        assert fits == (host.nbytes <= size // 2)
        if fits:
            written.append((host.copy(), target))
        host[:] = 0
    device.finish()
    for host, target in written:
        np.testing.assert_array_equal(target.view(host.dtype), host)


@given(st.integers(1, 8 * ALIGNMENT), st.booleans())
def test_arrays_of_any_shape_and_order_are_copied_by_rows(columns: int, turned: bool) -> None:
    device = LateDevice()
    ring = PinnedRing(np.zeros(64 * columns * ALIGNMENT, np.uint8), device)
    host = np.arange(3 * columns, dtype=np.int32).reshape(3, columns)
    given_array = host.T if turned else host
    target = np.zeros(host.nbytes, np.uint8)
    assert ring.write(target, given_array)
    device.finish()
    np.testing.assert_array_equal(target.view(np.int32), given_array.reshape(-1))


def test_it_waits_only_when_it_comes_round() -> None:
    device = LateDevice()
    ring = PinnedRing(np.zeros(4 * ALIGNMENT, np.uint8), device)
    waits = []
    for _ in range(10):
        assert ring.write(np.zeros(ALIGNMENT, np.uint8), np.ones(ALIGNMENT, np.uint8))
        waits.append(device.waits)
    # Two arrays fill a half: the first wait is for the first half, when it is to be filled again.
    assert waits == [0, 0, 0, 0, 1, 1, 2, 2, 3, 3]
