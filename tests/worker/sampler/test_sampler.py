from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.row_ops import ROW_OPS, ShimRowOps, make_row_ops
from support.sequences import sequence
from support.tiny import tiny_fd_config

from fastdeploy_lp.logits_processor.sequence_state.uniform import seeded_uniform
from fastdeploy_lp.logits_processor.share_inputs import ShareInputs
from fastdeploy_lp.model_executor.ops.row_ops import RowOps
from fastdeploy_lp.worker.sampler import Sampler
from fastdeploy_lp.worker.sampler.sampler import NUMBERS_AHEAD, DrawParameters

VOCAB_SIZE = 12
SLOTS = 16
MAX_MODEL_LEN = 8
CONFIG = tiny_fd_config(max_num_seqs=SLOTS)


@dataclass(frozen=True)
class Row:
    """One row of logits and what its request asks for."""

    logits: np.ndarray
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
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
                min_p=row.min_p,
                seed=row.seed,
            )
        )
    share_inputs.set_active(np.array(slots))
    return share_inputs


Draw = Callable[..., list[int]]


@pytest.fixture(scope="module", params=ROW_OPS)
def ops(request: pytest.FixtureRequest) -> RowOps:
    return make_row_ops(request.param)


@pytest.fixture(scope="module")
def draw(ops: RowOps) -> Draw:
    """One token for each row; row r is slot `slots[r]`, by default slot r."""

    def drawn(rows: Sequence[Row], slots: Sequence[int] | None = None) -> list[int]:
        slots = range(len(rows)) if slots is None else slots
        return sample(ops, np.stack([row.logits for row in rows]), fill(rows, slots), slots)

    return drawn


def sample(ops: RowOps, logits: np.ndarray, share_inputs: ShareInputs, slots: Sequence[int]) -> list[int]:
    sampled = Sampler(CONFIG, ops)(paddle.to_tensor(logits), share_inputs, np.array(slots))
    assert sampled.tokens.dtype == np.int64
    assert sampled.tokens.shape == (len(slots),)
    assert sampled.logprobs == {}
    return sampled.tokens.tolist()


def random_logits(seed: int, vocab_size: int = VOCAB_SIZE, scale: float = 2.0) -> np.ndarray:
    return scale * np.random.default_rng(seed).standard_normal(vocab_size, dtype=np.float32)


def exact_probabilities(row: Row) -> np.ndarray:
    """Temperature, then min-p, top-k, and top-p over what is left, in float64."""
    scaled = row.logits.astype(np.float64) / row.temperature
    order = np.argsort(-scaled, kind="stable")
    scaled[np.exp(scaled - scaled.max()) < row.min_p] = -np.inf
    if row.top_k > 0:
        scaled[order[row.top_k :]] = -np.inf
    probs = np.exp(scaled - scaled.max())
    probs /= probs.sum()
    before = np.cumsum(probs[order]) - probs[order]
    probs[order[before >= row.top_p]] = 0.0
    return probs / probs.sum()


# Greedy


@settings(max_examples=30)
@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=8))
def test_temperature_zero_takes_the_most_likely_token(draw: Draw, seeds: list[int]) -> None:
    rows = [Row(random_logits(seed), temperature=0.0, seed=seed, top_k=5, top_p=0.5) for seed in seeds]
    assert draw(rows) == [int(row.logits.argmax()) for row in rows]


def test_a_greedy_row_takes_the_first_of_equals(draw: Draw) -> None:
    logits = np.zeros(VOCAB_SIZE, np.float32)
    logits[[3, 7]] = 1.0
    assert draw([Row(logits, temperature=0.0)]) == [3]


def test_top_k_of_one_equals_greedy(draw: Draw) -> None:
    rows = [Row(random_logits(seed), temperature=1.5, top_k=1, seed=seed) for seed in range(SLOTS)]
    assert draw(rows) == draw([replace(row, temperature=0.0) for row in rows])


def test_a_very_low_temperature_equals_greedy(draw: Draw) -> None:
    rows = [Row(random_logits(seed), temperature=1e-4, seed=seed) for seed in range(SLOTS)]
    assert draw(rows) == draw([replace(row, temperature=0.0) for row in rows])


def test_greedy_and_random_rows_share_a_batch(draw: Draw) -> None:
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


@settings(max_examples=60)
@given(st.data())
def test_a_token_is_always_one_that_the_filters_leave(draw: Draw, data: st.DataObject) -> None:
    rows = [
        Row(
            random_logits(data.draw(st.integers(0, 10**6)), vocab_size=40),
            temperature=data.draw(st.sampled_from([0.3, 1.0, 3.0])),
            top_k=data.draw(st.sampled_from([0, 1, 2, 7, 39, 40, 1000])),
            top_p=data.draw(st.sampled_from([1.0, 0.999, 0.9, 0.5, 0.1, 1e-6])),
            min_p=data.draw(st.sampled_from([0.0, 0.0, 0.01, 0.2, 1.0])),
            seed=data.draw(st.integers(0, 2**64 - 1)),
        )
        for _ in range(data.draw(st.integers(1, 6)))
    ]
    for row, token in zip(rows, draw(rows), strict=True):
        # Single precision may see the borders a little further on.
        wider = replace(row, top_p=min(row.top_p + 1e-5, 1.0), min_p=row.min_p * (1 - 1e-6))
        assert exact_probabilities(wider)[token] > 0


def test_a_tiny_top_p_leaves_the_most_likely_token(draw: Draw) -> None:
    rows = [Row(random_logits(seed), top_p=1e-6, seed=seed) for seed in range(SLOTS)]
    assert draw(rows) == [int(row.logits.argmax()) for row in rows]


@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (8, 1.0), (0, 0.9), (8, 0.9)])
def test_banned_tokens_are_never_drawn(draw: Draw, top_k: int, top_p: float) -> None:
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
def test_the_ends_of_the_unit_interval_draw_tokens_that_are_possible(
    draw: Draw, seed: int, top_k: int, top_p: float
) -> None:
    one = np.ones(1, np.uint64)
    assert seeded_uniform(one * np.uint64(seed), one) == EXTREMES[seed]
    possible = random_logits(0, 1000)
    possible[:300] = possible[700:] = -np.inf
    row = Row(possible, top_k=top_k, top_p=top_p, seed=seed)
    assert exact_probabilities(row)[draw([row])[0]] > 0


# Frequencies

CHI_SQUARE_SEEDS, CHI_SQUARE_POSITIONS = 256, 16
# On the CPU, 64 threads run for each row.
CHI_SQUARE_POSITIONS_OF_KERNELS = 4


def critical(freedom: int) -> float:
    """What 0.1 % of true distributions exceed, by degrees of freedom (Wilson and Hilferty's approximation)."""
    share = 2 / (9 * freedom)
    return freedom * (1 - share + 3.09 * share**0.5) ** 3


@pytest.mark.parametrize(
    ("row", "kept"),
    [
        (Row(random_logits(3, scale=0.7)), 12),
        (Row(random_logits(4, scale=1.0), temperature=1.7), 12),
        (Row(random_logits(5), top_k=5), 5),
        (Row(random_logits(6, scale=1.0), top_p=0.5), 3),
        (Row(random_logits(7), temperature=2.5, top_k=6, top_p=0.8), 4),
        (Row(random_logits(8, scale=0.6), min_p=0.3), 4),
        (Row(random_logits(9, scale=1.0), temperature=1.5, min_p=0.1, top_k=9, top_p=0.9), 7),
    ],
    ids=["plain", "temperature", "top-k", "top-p", "both", "min-p", "all"],
)
def test_tokens_are_drawn_as_often_as_their_probabilities_say(ops: RowOps, row: Row, kept: int) -> None:
    seeds = CHI_SQUARE_SEEDS
    positions = CHI_SQUARE_POSITIONS_OF_KERNELS if isinstance(ops, ShimRowOps) else CHI_SQUARE_POSITIONS
    share_inputs = fill([replace(row, seed=s * 7919) for s in range(seeds)], range(seeds), max_num_seqs=seeds)
    logits = np.tile(row.logits, (seeds, 1))
    counts: Counter[int] = Counter()
    for _ in range(positions):
        counts.update(sample(ops, logits, share_inputs, range(seeds)))
        share_inputs["step_idx"][:] += 1
    expected = exact_probabilities(row) * seeds * positions
    possible = np.flatnonzero(expected)
    assert len(possible) == kept
    assert set(counts) <= set(possible.tolist())
    statistic = sum((counts[token] - expected[token]) ** 2 / expected[token] for token in possible.tolist())
    assert statistic < critical(kept - 1)


# Independence


@settings(max_examples=40)
@given(st.data())
def test_the_same_seed_and_position_give_the_same_token_whatever_is_around(draw: Draw, data: st.DataObject) -> None:
    def any_row(seeds: st.SearchStrategy[int]) -> Row:
        return Row(
            random_logits(data.draw(st.integers(0, 10**6)), vocab_size=64),
            temperature=data.draw(st.sampled_from([0.0, 0.7, 2.0])),
            top_k=data.draw(st.sampled_from([0, 1, 5, 50])),
            top_p=data.draw(st.sampled_from([1.0, 0.9])),
            min_p=data.draw(st.sampled_from([0.0, 0.0, 0.05])),
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
def test_equal_logits_are_drawn_the_same_whatever_the_neighbours_filter(
    draw: Draw, top_k: int, neighbour: dict[str, Any]
) -> None:
    # Processors that write constants make such rows.
    logits = np.round(random_logits(1, 64, scale=0.7))
    assert (logits == logits.max()).sum() > 2
    rows = [Row(logits, top_k=top_k, seed=seed) for seed in range(SLOTS - 1)]
    alone = [token for row in rows for token in draw([row])]
    assert draw(rows) == alone
    assert draw([*rows, Row(random_logits(0, 64), **neighbour)])[:-1] == alone


def test_the_position_counts_prompt_and_output_together(draw: Draw) -> None:
    for seed in range(8):
        row = Row(np.zeros(VOCAB_SIZE, np.float32), seed=seed, prompt_len=5)
        assert draw([row]) == draw([replace(row, prompt_len=2, output_len=3)])


def test_other_seeds_and_other_positions_give_other_tokens(draw: Draw) -> None:
    flat = Row(np.zeros(512, np.float32))
    assert len(set(draw([replace(flat, seed=seed) for seed in range(SLOTS)]))) > SLOTS // 2
    assert len(set(draw([replace(flat, output_len=length) for length in range(7)]))) > 3


def test_numbers_that_are_computed_ahead_are_those_of_each_token() -> None:
    rng = np.random.default_rng(0)
    slots = np.array([0, 2, 3])
    parameters = DrawParameters()
    for seed in (1, 2):
        rows = [Row(random_logits(0), seed=seed + row, prompt_len=2 + row, output_len=row) for row in range(3)]
        share_inputs = fill(rows, slots.tolist())
        parameters.forget()
        for _ in range(3 * NUMBERS_AHEAD):
            positions = [row.prompt_len for row in rows] + share_inputs["step_idx"][slots, 0]
            seeds = np.array([row.seed for row in rows], np.uint64)
            drawn = parameters.draws(share_inputs, slots).uniform
            assert drawn.tolist() == seeded_uniform(seeds, positions.astype(np.uint64)).tolist()
            share_inputs["step_idx"][slots, 0] += rng.integers(1, 4, len(slots))


def test_the_logits_are_left_as_they_were(ops: RowOps) -> None:
    rows = [Row(random_logits(s), temperature=t, top_k=k) for s, (t, k) in enumerate([(0.0, 0), (0.5, 0), (0.5, 3)])]
    logits = paddle.to_tensor(np.stack([row.logits for row in rows]))
    Sampler(CONFIG, ops)(logits, fill(rows, range(3)), np.arange(3))
    np.testing.assert_array_equal(logits.numpy(), np.stack([row.logits for row in rows]))
