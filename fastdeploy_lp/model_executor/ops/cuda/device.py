"""The interface of a device on which kernels run: launches and memory."""

from __future__ import annotations

from typing import Any, Protocol

from numpy.typing import NDArray


class DeviceArray(Protocol):
    """Memory of a device; work that is queued already may use it after the object is gone."""

    address: int
    """Where it begins, aligned to 16 bytes."""


class Device(Protocol):
    """Launches kernels in the order of the calls, and copies between them; nothing waits."""

    def launch(self, kernel: str, grid: tuple[int, int], threads: int, *arguments: Any, shared: int = 0) -> None:
        """Queues a kernel on a grid of blocks with so many threads; arguments are numbers of `ctypes`.

        shared: bytes of shared memory of a block, added to the memory that the kernel declares.
        """

    def upload(self, host: NDArray[Any]) -> DeviceArray:
        """Returns a copy of a contiguous array; the array may change afterwards."""

    def empty(self, size: int) -> DeviceArray:
        """Returns so many bytes."""
