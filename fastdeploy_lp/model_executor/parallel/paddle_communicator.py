"""Ranks on Paddle's distributed runtime: gloo between processes on the host, NCCL between GPUs."""

from __future__ import annotations

import contextlib
import functools
import io
import operator
import os
import warnings

import paddle
import paddle.distributed as dist
from paddle import Tensor

from fastdeploy_lp.model_executor.parallel.communicator import Communicator, RankPlace
from fastdeploy_lp.platforms import current_platform

# Gloo's ring sends many small messages: up to this size, a sum on rank 0 takes a fraction of the time.
MAX_BYTES_SUMMED_BY_ONE = 1 << 16


class PaddleCommunicator(Communicator):
    """Joins the group that all ranks form, with the environment that `paddle.distributed.launch` would set.

    With NCCL not yet run.
    """

    def __init__(self, place: RankPlace) -> None:
        super().__init__(place)
        platform = current_platform()
        paddle.set_device(platform.device_of_rank(place.rank))
        os.environ.update(_launch_environment(place, platform.distributed_backend))
        os.environ.update(platform.communication_environment(place.rank))
        # Suppress Paddle's report of its flags.
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            dist.init_parallel_env()
        self._has_ring_of_messages = platform.distributed_backend == "gloo"

    def all_reduce(self, x: Tensor) -> Tensor:
        """As the interface says."""
        if self._has_ring_of_messages and x.size * x.element_size() <= MAX_BYTES_SUMMED_BY_ONE:
            return self._summed_by_one(x)
        dist.all_reduce(x)
        return x

    def gather(self, x: Tensor) -> list[Tensor]:
        """As the interface says."""
        gathered: list[Tensor] = []
        dist.gather(x, gathered if self.rank == 0 else None, dst=0)
        return gathered

    def broadcast(self, x: Tensor) -> None:
        """As the interface says."""
        dist.broadcast(x, src=0)

    def _summed_by_one(self, x: Tensor) -> Tensor:
        parts = self.gather(x)
        total = functools.reduce(operator.add, parts) if parts else x
        self.broadcast(total)
        return total


def _launch_environment(place: RankPlace, backend: str) -> dict[str, str]:
    return {
        "PADDLE_TRAINER_ID": str(place.rank),
        "PADDLE_TRAINERS_NUM": str(place.size),
        "PADDLE_CURRENT_ENDPOINT": place.endpoints[place.rank],
        "PADDLE_TRAINER_ENDPOINTS": ",".join(place.endpoints),
        "PADDLE_MASTER": place.master,
        "PADDLE_DISTRI_BACKEND": backend,
        "GLOO_SOCKET_IFNAME": "lo",
    }
