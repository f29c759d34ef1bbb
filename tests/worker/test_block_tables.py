from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from support.sequences import sequence

from fastdeploy_lp.worker.block_manager import BlockTables

SLOTS, BLOCKS = 3, 6


@settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(0, SLOTS - 1), st.sampled_from(["grow", "leave"]), st.integers(1, 3))))
def test_a_row_begins_with_the_blocks_of_the_sequence_in_its_slot(events: list[tuple[int, str, int]]) -> None:
    tables = BlockTables(SLOTS, BLOCKS)
    running = {slot: sequence([1], slot=slot) for slot in range(SLOTS)}
    next_block = 1
    for slot, what, count in events:
        if what == "leave":
            tables.leave(slot)
            running[slot] = sequence([1], slot=slot)
        elif len(running[slot].block_table) + count <= BLOCKS:
            running[slot].block_table += range(next_block, next_block + count)
            next_block += count
        for each in running.values():
            row = tables.row(each)
            assert row.shape == (BLOCKS,)
            assert row[: len(each.block_table)].tolist() == each.block_table
