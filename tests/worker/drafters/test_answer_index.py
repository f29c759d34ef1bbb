"""The index of many answers: matches, votes, owners, eviction and memory."""

from __future__ import annotations

import random
import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastdeploy_lp.worker.drafters.answer_index import MAX_CANDIDATES, AnswerIndex, Continuation, Piece
from fastdeploy_lp.worker.drafters.token_index import TokenIndex

SHORTEST, LONGEST, CAPACITY = 2, 6, 10_000


def index_of(*answers: list[int], capacity: int = CAPACITY) -> tuple[AnswerIndex, int]:
    index = AnswerIndex(capacity, SHORTEST, LONGEST)
    owner = index.owner("one")
    index.add([Piece(owner, [], answer) for answer in answers])
    return index, owner


def common(one: list[int], other: list[int]) -> int:
    """Number of equal last tokens, up to the longest that counts."""
    pairs = zip(one[: -LONGEST - 1 : -1], other[: -LONGEST - 1 : -1], strict=False)
    return next(
        (length for length, (left, right) in enumerate(pairs) if left != right), min(len(one), len(other), LONGEST)
    )


tokens = st.lists(st.integers(0, 2), max_size=9)


@given(st.lists(tokens, min_size=1, max_size=4), tokens, st.booleans())
def test_what_followed_the_longest_match_is_found(answers: list[list[int]], text: list[int], together: bool) -> None:
    index = AnswerIndex(CAPACITY, SHORTEST, LONGEST)
    owner = index.owner("one")
    pieces = [Piece(owner, [], answer) for answer in answers]
    for each in [pieces] if together else [[piece] for piece in pieces]:
        index.add(each)
    ends = [(answer[:place], answer[place:]) for answer in answers for place in range(1, len(answer))]
    # With many candidates, only the newest are compared.
    lengths = [common(before, text) for before, _ in ends]
    longest = max(lengths, default=0)
    found = index.find(owner, text, 4)
    if found is None:
        assert longest < SHORTEST
        return
    assert found.length == longest or len(ends) > MAX_CANDIDATES
    assert found.tokens
    followed = [after for (_, after), length in zip(ends, lengths, strict=True) if length == found.length]
    assert any(after[: len(found.tokens)] == found.tokens for after in followed)


def test_the_most_frequent_continuation_counts() -> None:
    index, owner = index_of([1, 2, 7, 8], [1, 2, 7, 9, 4], [1, 2, 7, 9], [1, 2, 5])
    assert index.find(owner, [1, 2], 9) == Continuation([7, 9, 4], 2)
    assert index.find(owner, [1, 2], 1) == Continuation([7], 2)
    assert index.find(owner, [2, 1], 9) is None


def test_the_longest_match_counts_before_newer_ones() -> None:
    index, owner = index_of([3, 4, 5, 6, 1, 2, 10], *[[9, each, 1, 2, 20] for each in range(30)])
    assert index.find(owner, [3, 4, 5, 6, 1, 2], 9) == Continuation([10], 6)
    assert index.find(owner, [0, 0, 0, 0, 1, 2], 9) == Continuation([20], 2)


def test_tokens_before_an_answer_are_matched_and_never_drafted() -> None:
    index = AnswerIndex(CAPACITY, SHORTEST, LONGEST)
    owner = index.owner("one")
    index.add([Piece(owner, [1, 2, 3, 4], [5, 6])])
    assert index.find(owner, [1, 2], 9) is None
    assert index.find(owner, [3, 4], 9) == Continuation([5, 6], 2)


@pytest.mark.parametrize("owners", [2, 2400])
def test_owners_find_their_own_answers_only(owners: int) -> None:
    index = AnswerIndex(CAPACITY, SHORTEST, LONGEST)
    numbers = [index.owner(f"client {each}") for each in range(owners)]
    assert len(set(numbers)) == owners
    index.add([Piece(number, [], [1, 2, 100 + place]) for place, number in enumerate(numbers)])
    for place, number in enumerate(numbers):
        found = index.find(number, [1, 2], 4)
        # Chains of this many owners meet.
        assert found == Continuation([100 + place], 2)
    assert index.find(index.owner("another"), [1, 2], 4) is None


def test_numbers_of_owners_differ_between_indexes() -> None:
    assert AnswerIndex(CAPACITY, 2, 6).owner("one") != AnswerIndex(CAPACITY, 2, 6).owner("one")


def test_new_answers_replace_the_oldest() -> None:
    rng = random.Random(2)
    answers = [[rng.randrange(50_000) for _ in range(99)] for _ in range(350)]
    index, owner = index_of()
    for answer in answers:
        index.add([Piece(owner, [], answer)])
    found = [index.find(owner, answer[:8], 9) is not None for answer in answers]
    kept = CAPACITY // 100
    assert found == [False] * (350 - kept) + [True] * kept
    for answer in answers[-kept:]:
        assert index.find(owner, answer[10:20], 200) == Continuation(answer[20:], LONGEST)


def test_a_stale_entry_yields_no_text_of_another_owner() -> None:
    """A small vocabulary fills the ring several times, so that most entries name replaced text."""
    rng = random.Random(3)
    index = AnswerIndex(CAPACITY, SHORTEST, LONGEST)
    numbers = [index.owner("even"), index.owner("odd")]
    for _ in range(900):
        odd = rng.randrange(2)
        index.add([Piece(numbers[odd], [], [2 * rng.randrange(6) + odd for _ in range(rng.randrange(1, 90))])])
    for odd in (0, 1):
        texts = [[2 * rng.randrange(6) + odd for _ in range(8)] for _ in range(300)]
        assert not any(index.find(numbers[1 - odd], text, 8) for text in texts)
        found = [match for text in texts if (match := index.find(numbers[odd], text, 8)) is not None]
        # The hashes of two owners' texts may collide, which can hide a match.
        assert len(found) > 290
        assert all(token % 2 == odd for match in found for token in match.tokens)


@pytest.mark.parametrize("capacity", [10_000, 16_384, 100_000, 1_000_000])
@pytest.mark.parametrize("longest", [2, 8, 64])
def test_the_index_takes_little_memory(capacity: int, longest: int) -> None:
    tracemalloc.start()
    try:
        index = AnswerIndex(capacity, 2, longest)
        allocated, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert index.num_bytes <= allocated <= 50 * capacity


def test_an_index_never_grows_and_one_of_a_text_stays_small() -> None:
    rng = random.Random(4)
    texts = [[rng.randrange(50_000) for _ in range(500)] for _ in range(40)]
    answers, growing = AnswerIndex(CAPACITY, 2, 8), TokenIndex(2, 8)
    owner = answers.owner("one")
    tracemalloc.start()
    try:
        for text in texts:
            answers.add([Piece(owner, [], text)])
        grown, _ = tracemalloc.get_traced_memory()
        for text in texts:
            growing.extend(text)
        of_text = tracemalloc.get_traced_memory()[0] - grown
    finally:
        tracemalloc.stop()
    assert grown < 4096
    assert growing.num_bytes <= of_text <= 100 * 20_000


def test_every_place_of_a_long_text_is_found() -> None:
    rng = random.Random(5)
    text = [rng.randrange(50_000) for _ in range(2_000)]
    index, owner = index_of()
    for begin in range(0, len(text), 128):
        index.add([Piece(owner, text[max(begin - LONGEST, 0) : begin], text[begin : begin + 128])])
    for end, _ in pairwise(range(LONGEST, len(text))):
        found = index.find(owner, text[:end], 1)
        assert found == Continuation([text[end]], LONGEST)
