"""Several streams read as one: nothing lost, nothing left running, errors told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastdeploy_lp.engine.prepare.merge import merged

SECONDS = 10.0


class Streams:
    """Streams of numbers that say when they were closed; one that stands at `failing_at` raises."""

    def __init__(self, lengths: list[int], failing_at: tuple[int, int] | None = None) -> None:
        self.lengths = lengths
        self.failing_at = failing_at
        self.open: set[int] = set()

    def all(self) -> list[AsyncGenerator[int, None]]:
        return [self._stream(index, length) for index, length in enumerate(self.lengths)]

    async def _stream(self, index: int, length: int) -> AsyncGenerator[int, None]:
        self.open.add(index)
        try:
            for number in range(length):
                await asyncio.sleep(0)
                if (index, number) == self.failing_at:
                    raise LookupError(f"stream {index}")
                yield number
        finally:
            self.open.remove(index)


async def read(streams: Streams, count: int | None = None) -> list[tuple[int, int]]:
    """All items, or so many."""
    found: list[tuple[int, int]] = []
    async with aclosing(merged(streams.all())) as items:
        async for item in items:
            found.append(item)
            if len(found) == count:
                break
            # A reader that is slower than the streams.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
    return found


def run(streams: Streams, count: int | None = None) -> list[tuple[int, int]]:
    return asyncio.run(asyncio.wait_for(read(streams, count), SECONDS))


@given(st.lists(st.integers(0, 5), max_size=5))
def test_every_item_comes_once_and_in_the_order_of_its_stream(lengths: list[int]) -> None:
    streams = Streams(lengths)
    found = run(streams)
    for index, length in enumerate(lengths):
        assert [item for place, item in found if place == index] == list(range(length))
    assert len(found) == sum(lengths)
    assert not streams.open


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=5), st.integers(1, 4))
def test_a_reader_who_leaves_closes_all_of_them(lengths: list[int], count: int) -> None:
    """Also while an item waits for a reader who does not come any more."""
    streams = Streams([length + count for length in lengths])
    assert len(run(streams, count)) == count
    assert not streams.open


@given(st.integers(0, 2), st.integers(0, 3))
def test_an_error_ends_all_of_them(index: int, number: int) -> None:
    streams = Streams([10**6, 10**6, 10**6], (index, number))
    with pytest.raises(LookupError, match=f"stream {index}"):
        run(streams)
    assert not streams.open
