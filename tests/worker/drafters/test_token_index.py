from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastdeploy_lp.worker.drafters.token_index import TokenIndex

SHORTEST, LONGEST = 2, 4


def longest_match(tokens: list[int], shortest: int, following: set[int]) -> int:
    """Length of the longest earlier occurrence of the end before such a token, by comparison with every position."""
    best = 0
    for end in range(1, len(tokens)):
        if tokens[end] not in following:
            continue
        length = 0
        while length < min(LONGEST, end) and tokens[end - 1 - length] == tokens[-1 - length]:
            length += 1
        best = max(best, length)
    return best if best >= shortest else 0


@given(
    st.lists(st.integers(0, 2), max_size=12),
    st.integers(0, 12),
    st.integers(1, LONGEST),
    st.sets(st.integers(0, 2), min_size=1),
)
def test_the_longest_match_is_found(tokens: list[int], cut: int, shortest: int, following: set[int]) -> None:
    index = TokenIndex(shortest, LONGEST)
    index.extend(tokens[:cut])
    index.extend(tokens[cut:])
    position, length = index.match(following.__contains__)
    assert length == longest_match(tokens, shortest, following)
    if following == {0, 1, 2}:
        assert index.match() == (position, length)
    if length:
        assert tokens[position + 1] in following
        assert tokens[position + 1 - length : position + 1] == tokens[len(tokens) - length :]
        assert position < len(tokens) - 1


def test_a_long_match_is_found_before_many_places_of_its_last_token() -> None:
    index = TokenIndex(1, LONGEST)
    index.extend([1, 2, 3, 4, 5])
    for token in range(10, 110):
        index.extend([token, 4])
    index.extend([1, 2, 3, 4])
    assert index.match() == (3, 4)


def test_the_newest_place_counts_where_the_last_token_alone_is_found() -> None:
    index = TokenIndex(1, LONGEST)
    index.extend([1, 7, 2, 7, 3, 7])
    assert index.match() == (3, 1)


def test_a_long_text_keeps_its_matches_when_the_table_grows() -> None:
    rng = random.Random(1)
    tokens = [rng.randrange(50_000) for _ in range(5_000)]
    index = TokenIndex(SHORTEST, LONGEST)
    for token in tokens:
        index.extend([token])
    assert index.match() == (-1, 0)
    index.extend(tokens[100:104])
    assert index.match() == (103, 4)
    assert index.after(103, 3) == tokens[104:107]


@pytest.mark.parametrize(("text", "expected"), [([1, 2, 1, 2], [1, 2, 1, 2, 1]), ([7, 7, 7], [7] * 5)])
def test_a_repetition_goes_on_with_its_period(text: list[int], expected: list[int]) -> None:
    index = TokenIndex(SHORTEST, LONGEST)
    index.extend(text)
    position, _ = index.match()
    assert index.after(position, 5) == expected


@pytest.mark.parametrize("shortest", [1, SHORTEST])
def test_the_index_of_a_long_text_is_small(shortest: int) -> None:
    index = TokenIndex(shortest, LONGEST)
    index.extend(range(100_000))
    assert index.num_bytes <= 100 * 100_000
