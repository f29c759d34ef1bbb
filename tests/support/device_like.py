"""A platform on the CPU that behaves as a device does: memory of its own, the GPU's classes, recorded passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from numpy.typing import NDArray

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.model_executor.layers.attention.block_attention import BlockAttentionBackend
from fastdeploy_lp.model_executor.layers.rotary import RotaryTables
from fastdeploy_lp.model_executor.models.dimensions import Dimensions
from fastdeploy_lp.model_executor.ops import compiled_ops
from fastdeploy_lp.platforms import CpuPlatform, GpuPlatform, current_platform, selection
from support.block_attention_operator import block_multihead_attention


class EmulatedBlockAttention(BlockAttentionBackend):
    """The GPU's attention with an emulation of its operator."""

    def __init__(self, fd_config: FDConfig, dims: Dimensions, rotary: RotaryTables) -> None:
        super().__init__(fd_config, dims, rotary, block_multihead_attention)


class DeviceLikePlatform(CpuPlatform):
    """Counts the passes that were repeated."""

    name = "device-like"
    device_type = "cpu"
    runs_compiled_ops = False
    computes_on_host = False

    def __init__(self) -> None:
        self.repeated = 0

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
def device_like() -> Iterator[DeviceLikePlatform]:
    """What is started within runs on such a platform."""
    platform = DeviceLikePlatform()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selection, "find_platform", lambda _: platform)
        for cached in (current_platform, compiled_ops):
            cached.cache_clear()
        try:
            yield platform
        finally:
            patch.undo()
            for cached in (current_platform, compiled_ops):
                cached.cache_clear()
