"""Ranks read parts that together are the whole."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fastdeploy_lp.model_executor.loader.split import COLUMNS, ROWS, WHOLE, Section, Split, part_size


@given(size=st.integers(1, 300), ranks=st.integers(1, 9))
def test_parts_lie_behind_one_another_and_are_the_whole(size: int, ranks: int) -> None:
    parts = [np.arange(size)[Section(size).part(rank, ranks)] for rank in range(ranks)]
    assert np.concatenate(parts).tolist() == list(range(size))
    assert max(map(len, parts)) == part_size(size, ranks)
    assert [len(part) for part in parts] == sorted((len(part) for part in parts), reverse=True)


@given(pieces=st.integers(1, 6), entries=st.integers(1, 5), copies=st.integers(1, 4))
def test_pieces_that_are_fewer_than_the_ranks_are_held_by_neighbours(pieces: int, entries: int, copies: int) -> None:
    section = Section(pieces * entries, pieces)
    parts = [section.part(rank, pieces * copies) for rank in range(pieces * copies)]
    assert parts == [slice(piece * entries, (piece + 1) * entries) for piece in range(pieces) for _ in range(copies)]


@given(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=3), ranks=st.integers(1, 4), axis=st.integers(0, 1))
def test_a_rank_has_its_part_of_every_section(sizes: list[int], ranks: int, axis: int) -> None:
    sections = tuple(Section(size * ranks) for size in sizes)
    shape = [3, 3]
    shape[axis] = sum(section.size for section in sections)
    whole = np.arange(np.prod(shape)).reshape(shape)
    wanted = np.split(whole, np.cumsum([section.size for section in sections])[:-1], axis)
    for rank in range(ranks):
        parts = Split(axis, sections).parts(shape, rank, ranks)
        got = [whole] if parts is None else [whole[part] for part in parts]
        of_each = [np.split(section, ranks, axis)[rank] for section in wanted]
        np.testing.assert_array_equal(np.concatenate(got, axis), np.concatenate(of_each, axis))


def test_what_is_not_divided_is_read_whole() -> None:
    assert WHOLE.parts([4, 4], 1, 2) is None
    assert ROWS.parts([4, 4], 0, 1) is None
    assert ROWS.parts([4, 6], 1, 2) == [(slice(2, 4),)]
    assert COLUMNS.parts([4, 6], 1, 2) == [(slice(None), slice(3, 6))]
