"""Passes of sequences over a paged cache for the kernels of attention, and the same attention in float64."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from kernel_sides import ReadableDevice
from numpy.typing import NDArray

from fastdeploy_lp.model_executor.ops.cuda.attention_kernels import AttentionKernels, AttentionLayerData, AttentionPass
from fastdeploy_lp.model_executor.ops.cuda.attention_tiles import SPLIT_KEYS, HeadShape, TilePlan
from fastdeploy_lp.model_executor.ops.cuda.device import DeviceArray

TOLERANCE = {"bfloat16": 0.02, "float16": 0.003, "float32": 4e-6}

Floats = NDArray[np.floating[Any]]
Chunk = tuple[int, int, int]


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


def pass_of(integers: Sequence[int], rows: int, seqs: int, width: int, plan: TilePlan) -> AttentionPass:
    """Returns a pass of integers at these addresses: tables, contexts, first rows, tiles."""
    tables, contexts, first_rows, tiles = integers
    return AttentionPass(tables, contexts, first_rows, tiles, rows, seqs, width, plan)


@dataclass
class Crowd:
    """Sequences of random queries, keys and values: `qkv[i]` [tokens, heads + 2 * kv_heads, head_dim] before rotation.

    Blocks are shuffled; the cache has `filler` where nothing has been written. A chunk of a pass is a sequence, its
    first token and the end of its tokens. The device has the kernels of this element type and size of heads.
    """

    device: ReadableDevice
    shape: HeadShape
    element: str
    block_size: int
    lengths: Sequence[int]
    seed: int = 0
    filler: float = np.nan
    scale: float = 1.0
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
        self.keys, self.values = (as_stored(np.full(cache, self.filler), self.element) for _ in range(2))
        angles = np.arange(max(1, *self.lengths))[:, None] / 50.0 ** (np.arange(shape.head_dim // 2) / shape.head_dim)
        self.cos, self.sin = (np.tile(f(angles), 2).astype(np.float32) for f in (np.cos, np.sin))

    def run(self, chunks: Sequence[Chunk], plan: TilePlan | None = None, absent: int = 0) -> list[Any]:
        """Runs one pass; returns the results [tokens, heads, head_dim] of each chunk.

        absent: rows without a sequence at the end. Raises RuntimeError if they are written.
        """
        shape = self.shape
        if plan is None:
            starts, lengths = [start for _, start, _ in chunks], [end - start for _, start, end in chunks]
            plan = TilePlan.of([*starts, *[0] * absent], [*lengths, *[1] * absent], shape)
        per_row = [self.qkv[sequence][start:end] for sequence, start, end in chunks]
        qkv = as_stored(np.concatenate([*per_row, np.full((absent, *self.qkv[0].shape[1:]), np.nan)]), self.element)
        out = np.full((len(qkv), shape.heads, shape.head_dim), 77, qkv.dtype)
        # A block that does not exist, for rows that must not be looked up.
        tables = np.concatenate([self.tables[[s for s, _, _ in chunks]], np.full((absent, self.width), 1 << 30)])
        contexts = [*(end for _, _, end in chunks), *[0] * absent]
        first_rows = np.cumsum([0, *(end - start for _, start, end in chunks), *[1] * absent])
        integers = [self._held(np.asarray(each, np.int32)) for each in (tables, contexts, first_rows, plan.tiles)]
        data = [self._held(each) for each in (qkv, self.keys, self.values, out)]
        angles = [self._held(each) for each in (self.cos, self.sin)]
        self._kernels(angles)(
            AttentionLayerData(*(each.address for each in data)),
            pass_of([each.address for each in integers], len(qkv), len(tables), self.width, plan),
        )
        for memory, array in zip(data[1:], (self.keys, self.values, out), strict=True):
            self.device.read(memory.address, array)
        if not (out[len(out) - absent :] == 77).all():
            raise RuntimeError("a row without a sequence was written")
        return np.split(out[: len(out) - absent], first_rows[1 : len(chunks)])

    def _kernels(self, angles: Sequence[DeviceArray]) -> AttentionKernels:
        cos, sin = (each.address for each in angles)
        return AttentionKernels(self.device, self.shape, self.element, self.block_size, cos, sin)

    def _held(self, array: NDArray[Any]) -> DeviceArray:
        return self.device.upload(np.ascontiguousarray(array))

    def is_right(self, chunks: Sequence[Chunk], absent: int = 0) -> bool:
        """Runs a pass; returns True if its results are those in float64, within the tolerance of the element type."""
        return all(
            bool((np.abs(as_floats(found, self.element) - self.expected(*chunk)) <= TOLERANCE[self.element]).all())
            for chunk, found in zip(chunks, self.run(chunks, absent=absent), strict=True)
        )

    def fill(self, sequence: int, end: int) -> None:
        """Writes keys and values of the first `end` tokens to the cache, as an earlier pass would have."""
        turned, first = self._rotated(sequence)[:end], self.shape.heads
        new = turned[:, first : first + self.shape.kv_heads], turned[:, first + self.shape.kv_heads :]
        positions = np.arange(end)
        blocks = self.tables[sequence][positions // self.block_size]
        for cache, part in zip((self.keys, self.values), new, strict=True):
            cache[blocks, :, positions % self.block_size] = as_stored(part, self.element)

    def next_tokens(self, *sequences: int) -> list[Chunk]:
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


def passes(device: ReadableDevice, element: str, head_dim: int, groups: Sequence[int]) -> Iterator[bool]:
    """Runs passes of generation and of prompts after a cached part; yields for each whether it is right."""
    for group in groups:
        size = (32, 64, 128)[group % 3]
        lengths = [1, size, size + 1, SPLIT_KEYS + 1, 3 * SPLIT_KEYS + 5]
        crowd = Crowd(device, HeadShape(2 * group, 2, head_dim), element, size, lengths, seed=group)
        yield crowd.is_right(crowd.next_tokens(*range(len(lengths))), absent=2)
        crowd = Crowd(device, HeadShape(2 * group, 2, head_dim), element, size, [9, size + 3, SPLIT_KEYS + 60])
        chunks = [(1, size, size + 3), (0, 0, 9), (2, SPLIT_KEYS - 8, SPLIT_KEYS + 60)]
        for sequence, start, _ in chunks:
            crowd.fill(sequence, start)
        yield crowd.is_right(chunks)


# Cuts of a prompt within and at the edges of tiles of keys, blocks and splits.
CUTS = ((), (1,), (16, 17), (SPLIT_KEYS - 1,), (SPLIT_KEYS,), (SPLIT_KEYS + 1, SPLIT_KEYS + 2, 600), (7, 40, 261, 699))


def same_bits_any_way(
    device: ReadableDevice,
    element: str,
    head_dim: int,
    groups: Sequence[int],
    all_cuts: Sequence[Sequence[int]] = CUTS,
) -> Iterator[bool]:
    """Computes tokens in several ways; yields for each whether it has the bits of one pass over the whole prompt."""
    for group in groups:
        shape, length = HeadShape(2 * group, 2, head_dim), 700
        crowd = Crowd(device, shape, element, 64, [length, 1, 31, 300], seed=group)
        # The kernels write the cache as well: its rotation in float64 would round to other bits.
        alone = [crowd.run([(sequence, 0, end)])[0] for sequence, end in enumerate(crowd.lengths)]
        for cuts in all_cuts:
            yield bool((np.concatenate(_parts(crowd, cuts)) == alone[0]).all())
        chunks = [(sequence, end - 1, end) for sequence, end in enumerate(crowd.lengths)]
        yield all((found == whole[-1:]).all() for found, whole in zip(crowd.run(chunks, absent=3), alone, strict=True))
        drafted, plan = (0, length - 5, length), TilePlan.of([length - 5], [5], shape)
        yield bool((crowd.run([drafted])[0] == alone[0][-5:]).all())
        yield bool((crowd.run([drafted], replace(plan, split_tiles=0, split_rows=0))[0] == alone[0][-5:]).all())


def _parts(crowd: Crowd, cuts: Sequence[int]) -> list[NDArray[Any]]:
    """The results of a prompt in parts, with a separate cache."""
    alone = replace(crowd)
    bounds = itertools.pairwise([0, *cuts, crowd.lengths[0]])
    return [alone.run([(0, start, end)])[0] for start, end in bounds]
