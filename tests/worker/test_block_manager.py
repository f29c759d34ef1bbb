from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sequences import sequence

from fastdeploy_lp.worker.block_manager import NULL_BLOCK, BlockManager
from fastdeploy_lp.worker.sequence import Sequence

NUM_BLOCKS = 13
BLOCK_SIZE = 4


def of_length(length: int) -> Sequence:
    return sequence([1] * length, max_model_len=1000)


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 9)), max_size=60))
def test_no_block_belongs_to_two_and_the_null_block_to_nobody(events: list[tuple[int, int]]) -> None:
    blocks = BlockManager(NUM_BLOCKS, BLOCK_SIZE)
    held: dict[int, Sequence] = {}
    for who, more in events:
        if who in held and more == 9:
            blocks.release(held.pop(who))
        else:
            one = held.setdefault(who, of_length(more))
            one.output_token_ids += [2] * more
            needed = -(-one.num_tokens // BLOCK_SIZE) - len(one.block_table)
            if needed <= blocks.num_free:
                blocks.grow(one)
                assert len(one.block_table) * BLOCK_SIZE >= one.num_tokens
        used = [block for one in held.values() for block in one.block_table]
        assert len(set(used)) == len(used)
        assert set(used) <= set(range(1, NUM_BLOCKS))
        assert NULL_BLOCK not in used
        assert blocks.num_free == NUM_BLOCKS - 1 - len(used)


@pytest.mark.parametrize("length", [1, BLOCK_SIZE - 1, BLOCK_SIZE, BLOCK_SIZE + 1, 3 * BLOCK_SIZE])
def test_a_sequence_gets_no_more_blocks_than_its_tokens_need(length: int) -> None:
    blocks = BlockManager(NUM_BLOCKS, BLOCK_SIZE)
    one = of_length(length)
    blocks.grow(one)
    assert len(one.block_table) == -(-length // BLOCK_SIZE)
    blocks.grow(one)
    assert len(one.block_table) == -(-length // BLOCK_SIZE)


def test_blocks_that_a_sequence_has_stay_where_they_are() -> None:
    blocks = BlockManager(NUM_BLOCKS, BLOCK_SIZE)
    one, other = of_length(BLOCK_SIZE), of_length(1)
    blocks.grow(one)
    first = list(one.block_table)
    blocks.grow(other)
    one.output_token_ids += [2] * BLOCK_SIZE
    blocks.grow(one)
    assert one.block_table[: len(first)] == first


def test_released_blocks_can_be_used_again() -> None:
    blocks = BlockManager(NUM_BLOCKS, BLOCK_SIZE)
    everything = of_length((NUM_BLOCKS - 1) * BLOCK_SIZE)
    for _ in range(3):
        blocks.grow(everything)
        assert blocks.num_free == 0
        blocks.release(everything)
        assert blocks.num_free == NUM_BLOCKS - 1
        assert everything.block_table == []


def test_running_out_of_blocks_is_told_and_takes_none() -> None:
    blocks = BlockManager(NUM_BLOCKS, BLOCK_SIZE)
    too_long = of_length(NUM_BLOCKS * BLOCK_SIZE)
    with pytest.raises(RuntimeError, match=r"13 blocks needed, 12 free"):
        blocks.grow(too_long)
    assert too_long.block_table == []
    assert blocks.num_free == NUM_BLOCKS - 1
