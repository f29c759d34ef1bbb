"""Durations of the kernels of attention, alone on the device, beside torch's operator if torch is there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from attention_cases import pass_of
from kernel_device import DriverDevice
from kernel_times import Recorder, in_torch, torch_with_cuda

from fastdeploy_lp.model_executor.ops.cuda.attention_kernels import AttentionKernels, AttentionLayerData
from fastdeploy_lp.model_executor.ops.cuda.attention_tiles import HeadShape, TilePlan
from fastdeploy_lp.model_executor.ops.cuda.sources import KernelSources

ELEMENT, BLOCK_SIZE = "bfloat16", 64
SHAPES = (HeadShape(32, 8, 128), HeadShape(28, 4, 128), HeadShape(16, 16, 64))


@dataclass(frozen=True)
class Timed:
    """A pass of `seqs` sequences with `tokens` new ones each, at the end of a context of `context` tokens."""

    seqs: int
    tokens: int
    context: int

    def __str__(self) -> str:
        return f"{self.seqs} x {self.tokens:,} of {self.context:,} tokens"


PASSES = (
    *(Timed(1, 1, context) for context in (1_024, 8_192, 32_768, 131_072)),
    *(Timed(8, 1, 8_192), Timed(64, 1, 4_096), Timed(256, 1, 1_024)),
    *(Timed(8, 5, 8_192), Timed(1, 512, 4_096), Timed(1, 2_048, 8_192), Timed(1, 4_096, 32_768)),
)


def attention_times() -> Iterator[str]:
    """A line for each shape of heads and pass."""
    torch = torch_with_cuda()
    for shape in SHAPES:
        yield (
            f"attention, {shape.heads} query heads on {shape.kv_heads} of {shape.head_dim} elements: milliseconds of a "
            "layer by our kernels, and by torch"
        )
        device = DriverDevice(KernelSources.attention((ELEMENT, shape.head_dim)))
        for timed in PASSES:
            theirs = "" if torch is None else in_torch(torch, _attend_in_torch, *_tensors(torch, shape, timed))
            yield f"  {timed!s:<32} {_milliseconds(device, shape, timed):8.3f} {theirs:>9}"


def _milliseconds(device: DriverDevice, shape: HeadShape, timed: Timed) -> float:
    blocks = -(-timed.context // BLOCK_SIZE)
    rows, per_row = timed.seqs * timed.tokens, (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    plan = TilePlan.of([timed.context - timed.tokens] * timed.seqs, [timed.tokens] * timed.seqs, shape)
    cache = timed.seqs * blocks * shape.kv_heads * BLOCK_SIZE * shape.head_dim
    # Numbers of about 1, in bfloat16.
    numbers = np.random.default_rng(1).standard_normal(1 << 20).astype(np.float32).view(np.uint32) >> 16
    data = [device.upload(np.resize(numbers.astype(np.uint16), size)) for size in (rows * per_row, cache, cache)]
    tables = np.random.default_rng(2).permutation(timed.seqs * blocks).astype(np.int32)
    contexts = np.full(timed.seqs, timed.context, np.int32)
    first_rows = np.arange(timed.seqs + 1, dtype=np.int32) * timed.tokens
    integers = [device.upload(each) for each in (tables, contexts, first_rows, plan.tiles)]
    angles = [device.upload(np.ones((timed.context, shape.head_dim), np.float32)) for _ in range(2)]
    out, recorder = device.empty(2 * rows * shape.heads * shape.head_dim), Recorder(device)
    kernels = AttentionKernels(recorder, shape, ELEMENT, BLOCK_SIZE, *(each.address for each in angles))
    kernels(
        AttentionLayerData(data[0].address, data[1].address, data[2].address, out.address),
        pass_of([each.address for each in integers], rows, timed.seqs, blocks, plan),
    )
    return device.milliseconds(recorder.repeat)


def _tensors(torch: Any, shape: HeadShape, timed: Timed) -> tuple[Any, Any]:
    """Queries, and keys with values that are contiguous and written already: less work than the kernels have."""
    more = {"dtype": torch.bfloat16, "device": "cuda"}
    queries = torch.randn(timed.seqs, shape.heads, timed.tokens, shape.head_dim, **more)
    return queries, torch.randn(2, timed.seqs, shape.kv_heads, timed.context, shape.head_dim, **more)


def _attend_in_torch(torch: Any, queries: Any, cache: Any) -> Any:
    """Without a mask: its fast operators have none for the end of a context, so a prompt sees a little more."""
    operator = torch.nn.functional.scaled_dot_product_attention
    return operator(queries, *cache, enable_gqa=queries.shape[1] != cache.shape[2])
