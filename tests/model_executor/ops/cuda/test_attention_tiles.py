"""Tiles have every row once, of one sequence and one size of splits; memory for splits is bounded."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fastdeploy_lp.model_executor.ops.cuda.attention_tiles import (
    FEW_TOKENS,
    MOST_SPLITS,
    PARTIAL_BYTES,
    SPLIT_KEYS,
    TILE_ROWS,
    HeadShape,
    TilePlan,
    partial_bytes,
)

CHUNKS = st.lists(st.tuples(st.integers(0, 40_000), st.integers(1, 200)), min_size=1, max_size=6)


@given(CHUNKS, st.integers(1, 16))
def test_every_row_is_in_one_tile(chunks: list[tuple[int, int]], group: int) -> None:
    chunks.sort(key=lambda chunk: chunk[1])
    shape = HeadShape(group, 1, 64)
    starts, lengths = zip(*chunks, strict=True)
    plan = TilePlan.of(starts, lengths, shape)
    first_rows = np.cumsum([0, *lengths])
    rows = [(sequence, row) for sequence, first, count in plan.tiles.tolist() for row in range(first, first + count)]
    assert rows == [
        (i, row) for i, length in enumerate(lengths) for row in range(first_rows[i], first_rows[i] + length)
    ]
    for sequence, first, count in plan.tiles.tolist():
        assert count * group <= TILE_ROWS * (1 if first < plan.split_rows else shape.tile_warps)
        position = starts[sequence] + first - first_rows[sequence]
        # No position of the tile but the first one is a limit at which splits double.
        limits = [SPLIT_KEYS * MOST_SPLITS << k for k in range(4)]
        assert not any(position < limit < position + count for limit in limits)
    ends = [start + length for start, length in chunks if length <= FEW_TOKENS]
    split = [splits_of(p) for end in ends for p in (*range(SPLIT_KEYS - 1, end, SPLIT_KEYS), end - 1)]
    assert plan.split_rows == sum(n for n in lengths if n <= FEW_TOKENS)
    assert plan.most_splits == max(split, default=1)
    assert plan.split_tiles == sum(int(row) < plan.split_rows for row in plan.tiles[:, 1])


def splits_of(position: int) -> int:
    """As in `passes.cuh`."""
    keys = SPLIT_KEYS
    while keys * MOST_SPLITS <= position:
        keys *= 2
    return position // keys + 1


def test_memory_for_splits_is_bounded() -> None:
    shape = HeadShape(64, 8, 128)
    plan = TilePlan.of([100_000] * 400, [1] * 400, shape)
    assert 0 < plan.split_rows < 400
    assert partial_bytes(plan.split_rows, plan.most_splits, shape) <= PARTIAL_BYTES
    assert TilePlan.of_generation(100, 100_000, shape).split_rows == 100
    assert TilePlan.of_generation(400, 100_000, shape).split_rows == 0
