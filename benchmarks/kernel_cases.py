"""Random rows of logits, and parameters of operations on them, for comparisons of the CUDA kernels with the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fastdeploy_lp.model_executor.ops.cuda.row_arguments import LEAST_PART
from fastdeploy_lp.model_executor.ops.row_ops import Cut, Draws, Floats, Int64s, Penalties, TokenLists

# Around the widths of loops and warps, and of parts of rows; and a vocabulary of a real model for a wide batch.
WIDTHS = (1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 255, 511, 512, 513, 1000, 1023, 1024, 1025, 2049)
SIZES = (*WIDTHS, LEAST_PART - 1, LEAST_PART, LEAST_PART + 1, 2 * LEAST_PART + 3, 3 * LEAST_PART)
WIDE = 151_936
BATCH = 32
LISTED = 20

Random = np.random.Generator


@dataclass(frozen=True)
class Case:
    """Logits float32 [rows, size], with the parameters of every operation."""

    logits: Floats
    draws: Draws
    cut: Cut
    cut_values: Floats
    before: Int64s
    penalties: Penalties
    lists: TokenLists
    bits: NDArray[np.int32]
    forced: Int64s
    place_rows: Int64s
    place_tokens: Int64s
    values: Floats
    distinct: NDArray[np.bool_]
    listed: int


def cases(rows: int, seed: int, wide_rows: int) -> Iterator[Case]:
    """Cases of so many rows together, `wide_rows` of them as wide as a vocabulary of 151,936 tokens."""
    random = np.random.default_rng(seed)
    for first in range(0, wide_rows, BATCH):
        yield case(random, min(BATCH, wide_rows - first), WIDE)
    for first in range(wide_rows, rows, BATCH):
        yield case(random, min(BATCH, rows - first), int(random.choice(SIZES)))


def case(random: Random, rows: int, size: int) -> Case:
    """One batch."""
    logits = np.stack([random_row(random, size) for _ in range(rows)])
    listed = random.permutation(rows)[: random.integers(1, rows + 1)].astype(np.int64)
    tokens = [distinct_tokens(random, size, 60) for _ in listed]
    lists = TokenLists.of(listed.tolist(), tokens)
    entries = int(random.integers(1, 80))
    places = (random.integers(0, rows, entries), random.integers(0, size, entries))
    cut = Cut(int(random.integers(len(Cut))))
    distinct = np.zeros(entries, bool)
    distinct[np.unique(places[0] * size + places[1], return_index=True)[1]] = True
    return Case(
        logits=logits,
        draws=random_draws(random, rows, size),
        cut=cut,
        cut_values=random.uniform(1e-5, 4.0 if cut is Cut.TOP_N_SIGMA else 1.0, rows).astype(np.float32),
        before=np.array([random.integers(-1, row) if row else -1 for row in range(rows)], np.int64),
        penalties=random_penalties(random, lists),
        lists=lists,
        bits=random_bits(random, rows, size),
        forced=random.integers(0, size, rows),
        place_rows=places[0].astype(np.int64),
        place_tokens=places[1].astype(np.int64),
        values=random.choice([1e8, -1e8, 0.3, 1.0, -0.0, 7.5, 1e-3], entries).astype(np.float32),
        distinct=distinct,
        listed=int(random.integers(0, min(LISTED, size) + 1)),
    )


def random_row(random: Random, size: int) -> Floats:
    """A row of a random kind."""
    kind = KINDS[random.integers(len(KINDS))]
    return np.ascontiguousarray(kind(random, size), np.float32)


def _normal(random: Random, size: int) -> Floats:
    return random.standard_normal(size, np.float32) * np.float32(random.choice([1e-3, 0.1, 1.0, 2.0, 5.0, 12.0]))


def _ties(random: Random, size: int) -> Floats:
    return np.round(_normal(random, size))


def _half_banned(random: Random, size: int) -> Floats:
    row = _normal(random, size)
    row[random.random(size) < random.choice([0.5, 0.99])] = -np.inf
    return row


def _all_banned(_random: Random, size: int) -> Floats:
    return np.full(size, -np.inf, np.float32)


def _with_nan(random: Random, size: int) -> Floats:
    row = _normal(random, size)
    row[random.integers(size)] = random.choice([np.nan, -np.nan, np.inf])
    return row


def _one_token(random: Random, size: int) -> Floats:
    row = _all_banned(random, size)
    row[random.integers(size)] = random.choice([0.0, -0.0, 3.0, -1e30])
    return row


def _flat(random: Random, size: int) -> Floats:
    return np.full(size, random.choice([0.0, -0.0, 1.5, -1e4]), np.float32)


def _zeros(random: Random, size: int) -> Floats:
    return random.choice(np.array([0.0, -0.0, -1.0], np.float32), size)


def _peaked(random: Random, size: int) -> Floats:
    row = _normal(random, size)
    row[random.integers(size)] += np.float32(30)
    return row


def _extreme(random: Random, size: int) -> Floats:
    exponents = random.uniform(-44, 38, size)
    return (random.choice([-1.0, 1.0], size) * 10.0**exponents).astype(np.float32)


KINDS: tuple[Callable[[Random, int], Floats], ...] = (
    *(_normal, _normal, _normal, _ties, _half_banned, _all_banned),
    *(_with_nan, _one_token, _flat, _zeros, _peaked, _extreme),
)


def random_draws(random: Random, rows: int, size: int) -> Draws:
    """Parameters of draws, many of them with several filters."""
    return Draws(
        temperature=random.choice([0.0, 0.02, 0.3, 0.7, 1.0, 1.0, 3.0], rows).astype(np.float32),
        min_p=random.choice([0.0, 0.0, 0.0, 0.01, 0.3, 1.0], rows).astype(np.float32),
        top_k=random.choice([0, 0, 0, 1, 3, 50, 600, size, 10**6], rows).astype(np.int64),
        top_p=random.choice([1.0, 1.0, 0.999, 0.9, 0.5, 1e-6], rows).astype(np.float32),
        uniform=(random.integers(1, 2**24 + 1, rows) * 2.0**-24).astype(np.float32),
    )


def random_penalties(random: Random, lists: TokenLists) -> Penalties:
    """Penalties on listed tokens."""
    rows = len(lists.rows)
    rates = ([1.0, 1.3, 0.5], [0.0, 0.7], [0.0, -1.1, 0.3])
    return Penalties(
        lists,
        random.integers(0, 40, len(lists.tokens)),
        *(random.choice(choice, rows).astype(np.float32) for choice in rates),
    )


def random_bits(random: Random, rows: int, size: int) -> NDArray[np.int32]:
    """Masks with many words of one kind; bits beyond the vocabulary are anything."""
    bits = random.integers(-(2**31), 2**31, (rows, -(-size // 32))).astype(np.int32)
    bits[random.random(bits.shape) < 0.3] = 0
    bits[random.random(bits.shape) < 0.3] = -1
    return bits


def distinct_tokens(random: Random, size: int, most: int) -> Int64s:
    """Some tokens, sorted."""
    return np.unique(random.integers(0, size, random.integers(1, most + 1))).astype(np.int64)
