"""The random numbers that tokens are drawn by."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastdeploy_lp.logits_processor.sequence_state.uniform import seeded_uniform

uint64 = st.integers(0, 2**64 - 1)


@settings(max_examples=100)
@given(st.lists(st.tuples(uint64, st.integers(0, 2**31)), min_size=1, max_size=20))
def test_uniform_numbers_are_above_zero_at_most_one_and_reproducible(keys: list[tuple[int, int]]) -> None:
    seeds = np.array([seed for seed, _ in keys], np.uint64)
    positions = np.array([position for _, position in keys], np.uint64)
    numbers = seeded_uniform(seeds, positions)
    assert numbers.dtype == np.float32
    assert (numbers > 0).all()
    assert (numbers <= 1).all()
    one_by_one = [seeded_uniform(seeds[i : i + 1], positions[i : i + 1])[0] for i in range(len(keys))]
    assert numbers.tolist() == one_by_one


def grid(along_seeds: bool) -> np.ndarray:
    count = np.arange(100_000, dtype=np.uint64)
    fixed = np.full_like(count, 11)
    return seeded_uniform(count, fixed) if along_seeds else seeded_uniform(fixed, count)


@pytest.mark.parametrize("along_seeds", [True, False])
def test_uniform_numbers_are_uniform_along_seeds_and_along_positions(along_seeds: bool) -> None:
    numbers = grid(along_seeds).astype(np.float64)
    assert abs(numbers.mean() - 0.5) < 0.004
    assert abs(numbers.var() - 1 / 12) < 0.002
    observed = np.histogram(numbers, bins=20, range=(0.0, 1.0))[0]
    expected = len(numbers) / 20
    assert ((observed - expected) ** 2 / expected).sum() < 43.82  # 0.1 % at 19 degrees of freedom
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.012


def test_seeds_and_positions_do_not_trade_places() -> None:
    low = np.arange(300, dtype=np.uint64)
    seeds, positions = (side.ravel() for side in np.meshgrid(low, low))
    numbers = seeded_uniform(seeds, positions)
    # 24 bits for 90000 pairs: about 240 of them meet by chance.
    assert len(np.unique(numbers)) > len(numbers) - 400
