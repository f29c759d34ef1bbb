"""A platform on the CPU that behaves as a GPU: separate memory, the GPU's classes and results, recorded passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from numpy.typing import NDArray
from paddle import Tensor

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.model_executor.layers.attention.block_attention import BlockAttentionBackend
from fastdeploy_lp.model_executor.layers.rotary import RotaryTables
from fastdeploy_lp.model_executor.models.dimensions import Dimensions
from fastdeploy_lp.model_executor.ops import compiled_ops
from fastdeploy_lp.platforms import CpuPlatform, DeviceFailure, GpuPlatform, current_platform, selection
from fastdeploy_lp.platforms.pinned_memory import PinnedReads, PinnedRing
from support.block_attention_operator import block_multihead_attention
from support.gpu_semantics import DeviceQueue, gpu_semantics


class EmulatedBlockAttention(BlockAttentionBackend):
    """The GPU's attention with an emulation of its operator."""

    def __init__(self, fd_config: FDConfig, dims: Dimensions, rotary: RotaryTables) -> None:
        super().__init__(fd_config, dims, rotary, block_multihead_attention)


class DeviceLikePlatform(CpuPlatform):
    """Counts the passes that were repeated. Copies pass through the GPU's ring of pinned memory into `queue`."""

    name = "device-like"
    device_type = "cpu"
    runs_compiled_ops = False
    computes_on_host = False

    default_max_num_batched_tokens = GpuPlatform.default_max_num_batched_tokens

    def __init__(self, on_wait: Callable[[str], object]) -> None:
        self.repeated = 0
        self.queue = DeviceQueue(on_wait)
        self._gpu = GpuPlatform()
        vars(self._gpu)["_ring"] = PinnedRing(self.queue)
        vars(self._gpu)["_reads"] = PinnedReads(self.queue)

    def configure(self, fd_config: FDConfig) -> None:
        self._gpu.configure(fd_config)

    def to_device(self, host: NDArray[Any]) -> Tensor:
        return self._gpu.to_device(host)

    def write(self, target: Tensor, host: NDArray[Any]) -> None:
        self._gpu.write(target, host)

    def read_later(self, tensor: Tensor) -> Callable[[], NDArray[Any]]:
        return self._gpu.read_later(tensor)

    @property
    def runs_ahead(self) -> bool:
        return self._gpu.runs_ahead

    def failure_of(self, error: BaseException) -> DeviceFailure | None:
        return self._gpu.failure_of(error)

    def view_of(self, host: NDArray[Any]) -> None:
        """Host and device do not share memory."""
        return

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        """Records nothing and calls directly."""

        def repeat() -> None:
            self.repeated += 1
            run()

        return repeat

    def get_attention_backend(self) -> str:
        return f"{EmulatedBlockAttention.__module__}:{EmulatedBlockAttention.__qualname__}"

    def get_worker_class(self) -> str:
        return GpuPlatform().get_worker_class()


@contextmanager
def device_like(on_wait: Callable[[str], object] = lambda _: None) -> Iterator[DeviceLikePlatform]:
    """What is started within runs on such a platform; `on_wait` gets the name of all for which the host would wait."""
    platform = DeviceLikePlatform(on_wait)
    with gpu_semantics(on_wait), pytest.MonkeyPatch.context() as patch:
        patch.setattr(selection, "find_platform", lambda _: platform)
        for cached in (current_platform, compiled_ops):
            cached.cache_clear()
        try:
            yield platform
        finally:
            patch.undo()
            for cached in (current_platform, compiled_ops):
                cached.cache_clear()
