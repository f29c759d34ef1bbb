"""Division of a pass's tokens into tiles, each of which a block of threads computes for one KV head."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# As in `kernels/attention/passes.cuh`: rows of a warp, a row being a token and a query head.
TILE_ROWS = 16
SPLIT_KEYS, MOST_SPLITS = 256, 32
# Chunks of at most so many tokens are few warps, so their contexts are divided among several.
FEW_TOKENS = 16
# Of the splits that wait for their merge. More tokens have enough warps without splits.
PARTIAL_BYTES = 256 << 20


@dataclass(frozen=True)
class HeadShape:
    """Query heads and KV heads of a rank, and elements of a head."""

    heads: int
    kv_heads: int
    head_dim: int

    @property
    def group(self) -> int:
        """Query heads that share a KV head."""
        return self.heads // self.kv_heads

    @property
    def tile_warps(self) -> int:
        """Warps that share a tile of a chunk without splits; `kThreads` of `passes.cuh` has their threads."""
        return 8 if self.head_dim <= 64 else 4


@dataclass(frozen=True)
class TilePlan:
    """Tiles int32 [tiles, 3] of a pass: sequence, first row, rows; all are counted from the pass's first one.

    The first `split_tiles` tiles, which have the first `split_rows` rows, are computed in at most `most_splits` splits
    by different warps; a block of several warps computes each of the others. The bits of the results are the same.
    """

    tiles: NDArray[np.int32]
    split_tiles: int
    split_rows: int
    most_splits: int

    @classmethod
    def of(cls, starts: Sequence[int], lengths: Sequence[int], shape: HeadShape) -> TilePlan:
        """Plans chunks of `lengths` tokens at positions from `starts` on, in ascending length."""
        found: list[tuple[int, int, int]] = []
        split_tiles = split_rows = row = 0
        most_splits = 1
        for sequence, (start, length) in enumerate(zip(starts, lengths, strict=True)):
            splits = max(most_splits, most_splits_below(start + length))
            is_split = split_rows == row and length <= FEW_TOKENS
            is_split = is_split and partial_bytes(row + length, splits, shape) <= PARTIAL_BYTES
            most_rows = TILE_ROWS // shape.group * (1 if is_split else shape.tile_warps)
            found += ((sequence, row + first, rows) for first, rows in _tiles(start, length, most_rows))
            row += length
            if is_split:
                split_tiles, split_rows, most_splits = len(found), row, splits
        return cls(np.array(found, np.int32).reshape(-1, 3), split_tiles, split_rows, most_splits)

    @classmethod
    def of_generation(cls, size: int, max_model_len: int, shape: HeadShape) -> TilePlan:
        """Plans `size` sequences of one token each, with contexts of at most `max_model_len` tokens."""
        rows = np.arange(size, dtype=np.int32)
        tiles = np.stack([rows, rows, np.ones_like(rows)], axis=1)
        splits = most_splits_below(max_model_len)
        if partial_bytes(size, splits, shape) > PARTIAL_BYTES:
            return cls(tiles, 0, 0, 1)
        return cls(tiles, size, size, splits)


def most_splits_below(position: int) -> int:
    """Returns the most splits that a token before a position has; a token whose splits are doubled has fewer."""
    return min(MOST_SPLITS, -(-position // SPLIT_KEYS))


def partial_bytes(rows: int, splits: int, shape: HeadShape) -> int:
    """Returns the memory for so many splits of rows: float32 values, with their maximum and sum."""
    return 4 * rows * shape.heads * splits * (shape.head_dim + 2)


def _split_keys(position: int) -> int:
    keys = SPLIT_KEYS
    while keys * MOST_SPLITS <= position:
        keys *= 2
    return keys


def _tiles(start: int, length: int, most_rows: int) -> Iterator[tuple[int, int]]:
    """Yields first token and tokens of each tile of a chunk; within a tile, splits have one size."""
    first = 0
    while first < length:
        rows = min(most_rows, length - first, _split_keys(start + first) * MOST_SPLITS - (start + first))
        yield first, rows
        first += rows
