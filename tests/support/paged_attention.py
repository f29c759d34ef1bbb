"""Passes over a paged cache with the kernels of attention on the CPU."""

from __future__ import annotations

from typing import Any

from attention_cases import Crowd
from gpu_check_kernels import shim_device

from fastdeploy_lp.model_executor.ops.cuda.attention_tiles import HeadShape
from fastdeploy_lp.model_executor.ops.cuda.sources import KernelSources

# Every size of heads, and every element type; the runtime compiler's long tests have all pairs.
VARIANTS = (
    *(("bfloat16", head_dim) for head_dim in (32, 64, 96, 128)),
    *(("float16", 64), ("float32", 32), ("float32", 96)),
)


def crowd_of(shape: HeadShape, *sizes: Any, order: str = "forward", **more: Any) -> Crowd:
    """Returns sequences for kernels whose threads take turns in an order; arguments are those of `Crowd`."""
    return Crowd(shim_device(order, KernelSources.attention(*VARIANTS)), shape, *sizes, **more)
