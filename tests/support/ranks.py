"""Ranks that share a model: as threads of this process, and found among the processes of a server."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle import Tensor

from fastdeploy_lp.model_executor.parallel.communicator import Communicator, RankPlace
from support.processes import children_of
from support.server import ServerProcess

Result = TypeVar("Result")
WAIT_SECONDS = 60.0


class ThreadGroup:
    """What the communicators of threads share: a place for each rank's array, and a barrier.

    One rank computes at a time, since Paddle's operators were not made for several threads on the CPU.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.barrier = threading.Barrier(size, timeout=WAIT_SECONDS)
        self.turn = threading.Lock()
        self.arrays: list[NDArray[Any]] = [np.empty(0)] * size

    def wait_for_all(self) -> None:
        """Let the others compute until they are here as well."""
        self.turn.release()
        try:
            self.barrier.wait()
        finally:
            self.turn.acquire()


class ThreadCommunicator(Communicator):
    """One thread's end; refuses what a real group refuses: other shapes and types on other ranks."""

    def __init__(self, group: ThreadGroup, rank: int) -> None:
        super().__init__(RankPlace(rank, [""] * group.size, ""))
        self._group = group
        self.calls: list[str] = []

    def all_reduce(self, x: Tensor) -> Tensor:
        return paddle.to_tensor(np.sum(self._exchange("all_reduce", x), axis=0))

    def gather(self, x: Tensor) -> list[Tensor]:
        gathered = self._exchange("gather", x)
        return [paddle.to_tensor(each) for each in gathered] if self.rank == 0 else []

    def broadcast(self, x: Tensor) -> None:
        paddle.assign(paddle.to_tensor(self._exchange("broadcast", x)[0]), x)

    def _exchange(self, call: str, x: Tensor) -> list[NDArray[Any]]:
        self.calls.append(call)
        self._group.arrays[self.rank] = np.array(x.numpy())
        self._group.wait_for_all()
        arrays = list(self._group.arrays)
        self._group.wait_for_all()
        if len({(array.shape, array.dtype) for array in arrays}) != 1:
            raise ValueError(f"{call} of {[array.shape for array in arrays]}")
        return arrays


def on_ranks(size: int, work: Callable[[ThreadCommunicator], Result]) -> list[Result]:
    """What `work` gives on each of `size` ranks."""
    group = ThreadGroup(size)

    def run(rank: int) -> Result:
        try:
            with group.turn, paddle.no_grad():
                return work(ThreadCommunicator(group, rank))
        except BaseException:
            group.barrier.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(run, range(size)))


def rank_pids(server: ServerProcess) -> list[int]:
    """The processes of the ranks that follow the first one."""
    return children_of(server.worker_pid)
