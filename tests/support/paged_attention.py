"""Passes of sequences over a paged cache, for the kernels of attention, and the same attention in float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastdeploy_lp.model_executor.ops.cuda.attention_kernels import AttentionKernels, AttentionLayerData, AttentionPass
from fastdeploy_lp.model_executor.ops.cuda.attention_tiles import HeadShape, TilePlan
from fastdeploy_lp.model_executor.ops.cuda.sources import KernelSources
from support.cuda_shim import Order, ShimDevice, aligned

# Every size of heads, and every element type; the runtime compiler's test has all pairs.
VARIANTS = (
    *(("bfloat16", head_dim) for head_dim in (32, 64, 96, 128)),
    ("float16", 64),
    ("float32", 32),
    ("float32", 96),
)

Floats = NDArray[np.floating[Any]]


def as_stored(x: Floats, element: str) -> NDArray[Any]:
    """Rounds numbers to an element type, in numpy's way; bfloat16 as its bits."""
    if element != "bfloat16":
        return x.astype(element)
    with np.errstate(invalid="ignore"):
        bits = x.astype(np.float32).view(np.uint32)
    rounded = ((bits.astype(np.uint64) + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(x), np.uint16(0x7FC0), rounded)


def as_floats(x: NDArray[Any], element: str) -> NDArray[np.float64]:
    """Returns the numbers that are stored."""
    if element == "bfloat16":
        return (x.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return x.astype(np.float64)


def in_aligned_memory(x: NDArray[Any]) -> NDArray[Any]:
    """Returns a copy at an address that a device could have."""
    return aligned(x.nbytes, np.ascontiguousarray(x).reshape(-1).view(np.uint8)).view(x.dtype).reshape(x.shape)


@dataclass
class Crowd:
    """Sequences of random queries, keys and values: `qkv[i]` [tokens, heads + 2 * kv_heads, head_dim] before rotation.

    Blocks are shuffled; the cache has `filler` where nothing has been written.
    """

    shape: HeadShape
    element: str
    block_size: int
    lengths: Sequence[int]
    seed: int = 0
    filler: float = np.nan
    scale: float = 1.0
    order: Order = Order.FORWARD
    qkv: list[Floats] = field(init=False)

    def __post_init__(self) -> None:
        shape, random = self.shape, np.random.default_rng(self.seed)
        per_token = (shape.heads + 2 * shape.kv_heads, shape.head_dim)
        self.qkv = [
            as_floats(as_stored(self.scale * random.standard_normal((n, *per_token)), self.element), self.element)
            for n in self.lengths
        ]
        blocks = [-(-n // self.block_size) for n in self.lengths]
        self.width = max(1, *blocks) + 1
        places = 1 + random.permutation(sum(blocks) + 2)
        self.tables = np.zeros((len(blocks), self.width), np.int32)
        for row, count, end in zip(self.tables, blocks, np.cumsum(blocks), strict=True):
            row[:count] = places[end - count : end]
        cache = (len(places) + 1, shape.kv_heads, self.block_size, shape.head_dim)
        self.keys, self.values = (
            in_aligned_memory(as_stored(np.full(cache, self.filler), self.element)) for _ in range(2)
        )
        angles = np.arange(max(1, *self.lengths))[:, None] / 50.0 ** (np.arange(shape.head_dim // 2) / shape.head_dim)
        self.cos, self.sin = (np.tile(f(angles), 2).astype(np.float32) for f in (np.cos, np.sin))

    def kernels(self) -> AttentionKernels:
        device = ShimDevice(self.order, KernelSources.attention(*VARIANTS))
        return AttentionKernels(
            device, self.shape, self.element, self.block_size, self.cos.ctypes.data, self.sin.ctypes.data
        )

    def run(self, chunks: Sequence[tuple[int, int, int]], plan: TilePlan | None = None, absent: int = 0) -> list[Any]:
        """Runs one pass; returns the results [tokens, heads, head_dim] of each chunk: sequence, first token, end.

        absent: rows without a sequence at the end, whose results must stay as they are.
        """
        shape = self.shape
        if plan is None:
            starts, lengths = [start for _, start, _ in chunks], [end - start for _, start, end in chunks]
            plan = TilePlan.of([*starts, *[0] * absent], [*lengths, *[1] * absent], shape)
        per_row = [self.qkv[sequence][start:end] for sequence, start, end in chunks]
        unused = np.full((absent, *self.qkv[0].shape[1:]), np.nan)
        qkv = in_aligned_memory(as_stored(np.concatenate([*per_row, unused]), self.element))
        out = in_aligned_memory(np.full((len(qkv), shape.heads, shape.head_dim), 77, qkv.dtype))
        tables = np.concatenate([self.tables[[s for s, _, _ in chunks]], np.full((absent, self.width), 1 << 30)])
        ints = [
            np.ascontiguousarray(each, np.int32)
            for each in (
                tables,
                [*(end for _, _, end in chunks), *[0] * absent],
                np.cumsum([0, *(end - start for _, start, end in chunks), *[1] * absent]),
                plan.tiles,
            )
        ]
        batch = AttentionPass(*(each.ctypes.data for each in ints), len(qkv), len(tables), self.width, plan)
        data = AttentionLayerData(*(each.ctypes.data for each in (qkv, self.keys, self.values, out)))
        self.kernels()(data, batch)
        if not (out[len(out) - absent :] == 77).all():
            raise AssertionError("a row without a sequence was written")
        return np.split(out[: len(out) - absent], np.cumsum([len(each) for each in per_row])[:-1])

    def fill(self, sequence: int, end: int) -> None:
        """Writes keys and values of the first `end` tokens to the cache, as an earlier pass would have."""
        turned, first = self._rotated(sequence)[:end], self.shape.heads
        new = turned[:, first : first + self.shape.kv_heads], turned[:, first + self.shape.kv_heads :]
        positions = np.arange(end)
        blocks = self.tables[sequence][positions // self.block_size]
        for cache, part in zip((self.keys, self.values), new, strict=True):
            cache[blocks, :, positions % self.block_size] = as_stored(part, self.element)

    def next_tokens(self, *sequences: int) -> list[tuple[int, int, int]]:
        """Returns chunks of the last token of each sequence, all other ones of which are in the cache then."""
        for sequence in sequences:
            self.fill(sequence, self.lengths[sequence] - 1)
        return [(sequence, self.lengths[sequence] - 1, self.lengths[sequence]) for sequence in sequences]

    def expected(self, sequence: int, start: int, end: int) -> NDArray[np.float64]:
        """Attention of tokens [start, end) of a sequence, [tokens, heads, head_dim], in float64."""
        shape, turned = self.shape, self._rotated(sequence)[:end]
        queries = turned[start:, : shape.heads].reshape(end - start, shape.kv_heads, shape.group, shape.head_dim)
        keys, values = turned[:, shape.heads :][:, : shape.kv_heads], turned[:, shape.heads + shape.kv_heads :]
        scores = np.einsum("qhgd,khd->hgqk", queries, keys, optimize=True) / np.sqrt(shape.head_dim)
        hidden = np.arange(end) > np.arange(start, end)[:, None]
        scores[..., hidden] = -np.inf
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        found: NDArray[np.float64] = np.einsum("hgqk,khd->qhgd", weights, values, optimize=True)
        return found.reshape(end - start, shape.heads, shape.head_dim)

    def _rotated(self, sequence: int) -> NDArray[np.float64]:
        """The projections of a sequence with queries and keys rotated, as the element type stores them."""
        shape, qkv = self.shape, self.qkv[sequence].copy()
        half, rotating = shape.head_dim // 2, qkv[:, : shape.heads + shape.kv_heads]
        cos, sin = (table[: len(qkv), None].astype(np.float64) for table in (self.cos, self.sin))
        rotating[:] = rotating * cos + np.concatenate([-rotating[..., half:], rotating[..., :half]], axis=2) * sin
        return as_floats(as_stored(qkv, self.element), self.element)
