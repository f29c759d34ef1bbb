from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sequences import sequence

from fastdeploy_lp.worker.sampler import Sampler, seeded_uniform
from fastdeploy_lp.worker.share_inputs import ShareInputs

VOCAB_SIZE = 12
SLOTS = 16
MAX_MODEL_LEN = 8


@dataclass(frozen=True)
class Row:
    """One row of logits and what its request asks for."""

    logits: np.ndarray
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    prompt_len: int = 1
    output_len: int = 0


def fill(rows: Sequence[Row], slots: Sequence[int], max_num_seqs: int = SLOTS) -> ShareInputs:
    share_inputs = ShareInputs(max_num_seqs, MAX_MODEL_LEN)
    for row, slot in zip(rows, slots, strict=True):
        share_inputs.assign(
            sequence(
                [1] * row.prompt_len,
                output=[1] * row.output_len,
                slot=slot,
                temperature=row.temperature,
                top_k=row.top_k,
                top_p=row.top_p,
                seed=row.seed,
            )
        )
    share_inputs.set_active(np.array(slots))
    return share_inputs


def draw(rows: Sequence[Row], slots: Sequence[int] | None = None) -> list[int]:
    """One token for each row; row r is slot `slots[r]`, by default slot r."""
    slots = range(len(rows)) if slots is None else slots
    logits = paddle.to_tensor(np.stack([row.logits for row in rows]))
    tokens = Sampler()(logits, fill(rows, slots), np.array(slots)).numpy()
    assert tokens.dtype == np.int64
    assert tokens.shape == (len(rows),)
    return tokens.tolist()


def random_logits(seed: int, vocab_size: int = VOCAB_SIZE, scale: float = 2.0) -> np.ndarray:
    return scale * np.random.default_rng(seed).standard_normal(vocab_size, dtype=np.float32)


def exact_probabilities(row: Row) -> np.ndarray:
    """Temperature, then top-k, then top-p over what is left, in float64."""
    scaled = row.logits.astype(np.float64) / row.temperature
    order = np.argsort(-scaled, kind="stable")
    if row.top_k > 0:
        scaled[order[row.top_k :]] = -np.inf
    probs = np.exp(scaled - scaled.max())
    probs /= probs.sum()
    before = np.cumsum(probs[order]) - probs[order]
    probs[order[before >= row.top_p]] = 0.0
    return probs / probs.sum()


# Greedy


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=8))
def test_temperature_zero_takes_the_most_likely_token(seeds: list[int]) -> None:
    rows = [Row(random_logits(seed), temperature=0.0, seed=seed, top_k=5, top_p=0.5) for seed in seeds]
    assert draw(rows) == [int(row.logits.argmax()) for row in rows]


def test_a_greedy_row_takes_the_first_of_equals() -> None:
    logits = np.zeros(VOCAB_SIZE, np.float32)
    logits[[3, 7]] = 1.0
    assert draw([Row(logits, temperature=0.0)]) == [3]


def test_top_k_of_one_equals_greedy() -> None:
    rows = [Row(random_logits(seed), temperature=1.5, top_k=1, seed=seed) for seed in range(SLOTS)]
    assert draw(rows) == draw([replace(row, temperature=0.0) for row in rows])


def test_a_very_low_temperature_equals_greedy() -> None:
    rows = [Row(random_logits(seed), temperature=1e-4, seed=seed) for seed in range(SLOTS)]
    assert draw(rows) == draw([replace(row, temperature=0.0) for row in rows])


def test_greedy_and_random_rows_share_a_batch() -> None:
    rows = [
        Row(random_logits(seed), temperature=0.0 if seed % 3 else 1.0, top_k=seed % 2 * 4, seed=seed)
        for seed in range(SLOTS)
    ]
    together = draw(rows)
    assert together == [token for row in rows for token in draw([row])]
    for row, token in zip(rows, together, strict=True):
        if row.temperature == 0.0:
            assert token == row.logits.argmax()


# Filters


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_a_token_is_always_one_that_the_filters_leave(data: st.DataObject) -> None:
    rows = [
        Row(
            random_logits(data.draw(st.integers(0, 10**6)), vocab_size=40),
            temperature=data.draw(st.sampled_from([0.3, 1.0, 3.0])),
            top_k=data.draw(st.sampled_from([0, 1, 2, 7, 39, 40, 1000])),
            top_p=data.draw(st.sampled_from([1.0, 0.999, 0.9, 0.5, 0.1, 1e-6])),
            seed=data.draw(st.integers(0, 2**64 - 1)),
        )
        for _ in range(data.draw(st.integers(1, 6)))
    ]
    for row, token in zip(rows, draw(rows), strict=True):
        # Single precision may see the border of top-p a little further on.
        assert exact_probabilities(replace(row, top_p=min(row.top_p + 1e-5, 1.0)))[token] > 0


def test_a_tiny_top_p_leaves_the_most_likely_token() -> None:
    rows = [Row(random_logits(seed), top_p=1e-6, seed=seed) for seed in range(SLOTS)]
    assert draw(rows) == [int(row.logits.argmax()) for row in rows]


@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (8, 1.0), (0, 0.9), (8, 0.9)])
def test_banned_tokens_are_never_drawn(top_k: int, top_p: float) -> None:
    allowed = [2, 5]
    logits = np.full(VOCAB_SIZE, -np.inf, np.float32)
    logits[allowed] = [0.0, 0.5]
    for position in range(MAX_MODEL_LEN - 1):
        rows = [Row(logits, top_k=top_k, top_p=top_p, seed=seed, output_len=position) for seed in range(SLOTS)]
        assert set(draw(rows)) <= set(allowed)


# Seeds whose uniform number at position 1 is the smallest and the greatest that there is.
EXTREMES = {12245649: 2.0**-24, 989657: 1.0}


@pytest.mark.parametrize("seed", EXTREMES)
@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (7, 1.0), (0, 0.99)])
def test_the_ends_of_the_unit_interval_draw_tokens_that_are_possible(seed: int, top_k: int, top_p: float) -> None:
    one = np.ones(1, np.uint64)
    assert seeded_uniform(one * np.uint64(seed), one) == EXTREMES[seed]
    possible = random_logits(0, 1000)
    possible[:300] = possible[700:] = -np.inf
    row = Row(possible, top_k=top_k, top_p=top_p, seed=seed)
    assert exact_probabilities(row)[draw([row])[0]] > 0


# Frequencies

# 0.1 % of true distributions exceed these, by degrees of freedom.
CRITICAL = {2: 13.82, 3: 16.27, 4: 18.47, 11: 31.26}


@pytest.mark.parametrize(
    ("row", "freedom"),
    [
        (Row(random_logits(3, scale=0.7)), 11),
        (Row(random_logits(4, scale=1.0), temperature=1.7), 11),
        (Row(random_logits(5), top_k=5), 4),
        (Row(random_logits(6, scale=1.0), top_p=0.5), 2),
        (Row(random_logits(7), temperature=2.5, top_k=6, top_p=0.8), 3),
    ],
    ids=["plain", "temperature", "top-k", "top-p", "all"],
)
def test_tokens_are_drawn_as_often_as_their_probabilities_say(row: Row, freedom: int) -> None:
    seeds, positions = 256, 16
    share_inputs = fill([replace(row, seed=s * 7919) for s in range(seeds)], range(seeds), max_num_seqs=seeds)
    logits = paddle.to_tensor(np.tile(row.logits, (seeds, 1)))
    counts: Counter[int] = Counter()
    for _ in range(positions):
        counts.update(Sampler()(logits.clone(), share_inputs, np.arange(seeds)).tolist())
        share_inputs["step_idx"][:] += 1
    expected = exact_probabilities(row) * seeds * positions
    possible = np.flatnonzero(expected)
    assert len(possible) == freedom + 1
    assert set(counts) <= set(possible.tolist())
    statistic = sum((counts[token] - expected[token]) ** 2 / expected[token] for token in possible.tolist())
    assert statistic < CRITICAL[freedom]


# Independence


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_the_same_seed_and_position_give_the_same_token_whatever_is_around(data: st.DataObject) -> None:
    def any_row(seeds: st.SearchStrategy[int]) -> Row:
        return Row(
            random_logits(data.draw(st.integers(0, 10**6)), vocab_size=64),
            temperature=data.draw(st.sampled_from([0.0, 0.7, 2.0])),
            top_k=data.draw(st.sampled_from([0, 1, 5, 50])),
            top_p=data.draw(st.sampled_from([1.0, 0.9])),
            seed=data.draw(seeds),
            output_len=data.draw(st.integers(0, 3)),
        )

    row = any_row(st.integers(0, 2**64 - 1))
    alone = draw([row])[0]
    neighbours = [any_row(st.just(row.seed) | st.integers(0, 2**64 - 1)) for _ in range(data.draw(st.integers(0, 5)))]
    place = data.draw(st.integers(0, len(neighbours)))
    slots = sorted(data.draw(st.permutations(range(SLOTS)))[: len(neighbours) + 1])
    crowd = [*neighbours[:place], row, *neighbours[place:]]
    assert draw(crowd, slots)[place] == alone


@pytest.mark.parametrize("top_k", [1, 2, 5])
@pytest.mark.parametrize("neighbour", [{"top_p": 0.9}, {"top_k": 40}], ids=["top-p", "top-k"])
def test_equal_logits_are_drawn_the_same_whatever_the_neighbours_filter(top_k: int, neighbour: dict[str, Any]) -> None:
    # Processors that write constants make such rows.
    logits = np.round(random_logits(1, 64, scale=0.7))
    assert (logits == logits.max()).sum() > 2
    rows = [Row(logits, top_k=top_k, seed=seed) for seed in range(SLOTS - 1)]
    alone = [token for row in rows for token in draw([row])]
    assert draw(rows) == alone
    assert draw([*rows, Row(random_logits(0, 64), **neighbour)])[:-1] == alone


def test_the_position_counts_prompt_and_output_together() -> None:
    for seed in range(8):
        row = Row(np.zeros(VOCAB_SIZE, np.float32), seed=seed, prompt_len=5)
        assert draw([row]) == draw([replace(row, prompt_len=2, output_len=3)])


def test_other_seeds_and_other_positions_give_other_tokens() -> None:
    flat = Row(np.zeros(512, np.float32))
    assert len(set(draw([replace(flat, seed=seed) for seed in range(SLOTS)]))) > SLOTS // 2
    assert len(set(draw([replace(flat, output_len=length) for length in range(7)]))) > 3


def test_the_logits_are_left_as_they_were() -> None:
    rows = [Row(random_logits(s), temperature=t, top_k=k) for s, (t, k) in enumerate([(0.0, 0), (0.5, 0), (0.5, 3)])]
    logits = paddle.to_tensor(np.stack([row.logits for row in rows]))
    Sampler()(logits, fill(rows, range(3)), np.arange(3))
    np.testing.assert_array_equal(logits.numpy(), np.stack([row.logits for row in rows]))


# The generator

uint64 = st.integers(0, 2**64 - 1)


@settings(deadline=None, max_examples=100)
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
