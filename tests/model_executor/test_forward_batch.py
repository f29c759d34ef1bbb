from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fastdeploy_lp.model_executor.forward_batch import ForwardBatch, ForwardBatchBuilder, SequenceChunk

NUM_HEADS = 4
NUM_KV_HEADS = 2
BLOCK_SIZE = 4


@st.composite
def chunk_lists(draw: st.DrawFn) -> list[SequenceChunk]:
    """Chunks of several sequences, each with blocks of its own."""
    chunks, block = [], 1
    for index in range(draw(st.integers(1, 6))):
        size, start = draw(st.sampled_from([1, 1, 2, 5, 9])), draw(st.integers(0, 12))
        held = -(-(start + size) // BLOCK_SIZE)
        table = draw(st.permutations(range(block, block + held)))
        block += held
        chunks.append(SequenceChunk(np.arange(size) + 100 * (index + 1), start, np.array(table)))
    return chunks


def build(chunks: list[SequenceChunk]) -> ForwardBatch:
    return ForwardBatchBuilder(NUM_HEADS, NUM_KV_HEADS, BLOCK_SIZE).build(chunks)


def rows_of(batch: ForwardBatch, chunks: list[SequenceChunk]) -> list[slice]:
    """Where the tokens of each chunk lie."""
    return [
        slice(last + 1 - len(chunk.token_ids), last + 1)
        for chunk, last in zip(chunks, batch.output_rows.tolist(), strict=True)
    ]


@settings(max_examples=25)
@given(chunk_lists())
def test_every_token_lies_once_at_its_position(chunks: list[SequenceChunk]) -> None:
    batch = build(chunks)
    assert len(batch.token_ids) == sum(len(chunk.token_ids) for chunk in chunks)
    for chunk, rows in zip(chunks, rows_of(batch, chunks), strict=True):
        assert batch.token_ids.numpy()[rows].tolist() == chunk.token_ids.tolist()
        assert batch.positions.numpy()[rows].tolist() == list(range(chunk.start, chunk.start + len(chunk.token_ids)))


@settings(max_examples=25)
@given(chunk_lists())
def test_every_key_has_a_place_of_its_own_in_its_sequences_blocks(chunks: list[SequenceChunk]) -> None:
    batch = build(chunks)
    cache_rows = batch.cache_rows.numpy().reshape(-1, NUM_KV_HEADS)
    assert len(np.unique(cache_rows)) == cache_rows.size
    assert cache_rows.min() >= NUM_KV_HEADS * BLOCK_SIZE  # never the null block
    for chunk, rows in zip(chunks, rows_of(batch, chunks), strict=True):
        for position, heads in enumerate(cache_rows[rows].tolist(), start=chunk.start):
            block = chunk.block_table[position // BLOCK_SIZE]
            offset = position % BLOCK_SIZE
            assert heads == [(block * NUM_KV_HEADS + head) * BLOCK_SIZE + offset for head in range(NUM_KV_HEADS)]


@settings(max_examples=25)
@given(chunk_lists())
def test_groups_cover_all_rows_in_order_with_one_length_each(chunks: list[SequenceChunk]) -> None:
    batch = build(chunks)
    next_row = 0
    for group in batch.groups:
        assert group.first_row == next_row
        next_row += group.num_seqs * group.query_len
    assert next_row == len(batch.token_ids)
    lengths = [group.query_len for group in batch.groups]
    assert lengths == sorted({len(chunk.token_ids) for chunk in chunks})


@settings(max_examples=25)
@given(chunk_lists())
def test_a_query_sees_its_own_past_and_itself_and_nothing_else(chunks: list[SequenceChunk]) -> None:
    batch = build(chunks)
    positions = batch.positions.numpy()
    for group in batch.groups:
        mask = group.mask.numpy()
        context = len(group.blocks) // (group.num_seqs * NUM_KV_HEADS) * BLOCK_SIZE
        assert mask.shape == (group.num_seqs, 1, 1, group.query_len, context)
        rows = positions[group.first_row : group.first_row + group.num_seqs * group.query_len]
        visible = np.arange(context)[None, :] <= rows[:, None]
        np.testing.assert_array_equal(mask.reshape(-1, context), np.where(visible, 0.0, -np.inf))


@settings(max_examples=25)
@given(chunk_lists())
def test_the_visible_blocks_of_a_group_are_those_of_its_sequences(chunks: list[SequenceChunk]) -> None:
    batch = build(chunks)
    by_length = sorted(chunks, key=lambda chunk: len(chunk.token_ids))
    for group in batch.groups:
        own, by_length = by_length[: group.num_seqs], by_length[group.num_seqs :]
        tables = group.blocks.numpy().reshape(group.num_seqs, NUM_KV_HEADS, -1)
        for chunk, table in zip(own, tables, strict=True):
            for head in range(NUM_KV_HEADS):
                expected = chunk.block_table * NUM_KV_HEADS + head
                assert table[head][: len(expected)].tolist() == expected.tolist()
                assert (table[head][len(expected) :] == head).all()  # filled up with the null block


@settings(max_examples=25)
@given(chunk_lists())
def test_reordering_to_heads_and_back_changes_nothing(chunks: list[SequenceChunk]) -> None:
    for group in build(chunks).groups:
        if group.query_len == 1:
            assert group.to_heads is None
            assert group.to_tokens is None
            continue
        count = group.num_seqs * group.query_len * NUM_HEADS
        there, back = group.to_heads.numpy(), group.to_tokens.numpy()
        assert np.arange(count)[there][back].tolist() == list(range(count))
        by_head = there.reshape(group.num_seqs, NUM_HEADS, group.query_len)
        assert (by_head % NUM_HEADS == np.arange(NUM_HEADS)[None, :, None]).all()
