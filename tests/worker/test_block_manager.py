from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sequences import sequence

from fastdeploy_lp.worker.block_manager import NULL_BLOCK, BlockManager
from fastdeploy_lp.worker.kv_events import BlockRemoved, BlockStored
from fastdeploy_lp.worker.sequence import Sequence

NUM_BLOCKS = 13
BLOCK_SIZE = 4


def manager(**options: Any) -> BlockManager:
    return BlockManager(NUM_BLOCKS, BLOCK_SIZE, **options)


def of(tokens: list[int]) -> Sequence:
    return sequence(tokens, max_model_len=1000)


def admit(blocks: BlockManager, one: Sequence, spare: int = 0) -> bool:
    return blocks.admit(one, blocks.find_prefix(one), spare=spare)


def compute(blocks: BlockManager, one: Sequence) -> None:
    """As a step does that computes all of the sequence."""
    one.num_computed = one.num_tokens
    blocks.share_computed(one)


def more(blocks: BlockManager, one: Sequence, *tokens: int) -> None:
    """As steps do that sample these tokens and compute them."""
    for token in tokens:
        one.append(token)
        assert blocks.grow(one)
        compute(blocks, one)


def take_back(blocks: BlockManager, one: Sequence, count: int) -> None:
    """As a step does that takes back the last output tokens, at most all of them, instead of the one it sampled."""
    left = one.output_token_ids[: -min(count, len(one.output_token_ids))]
    if one.num_computed >= one.num_tokens - 1 and len(left) < len(one.output_token_ids):
        one.output_token_ids = left
        blocks.rewind(one)


def serve(blocks: BlockManager, tokens: list[int]) -> Sequence:
    """A sequence that came, was computed and went."""
    one = of(tokens)
    assert admit(blocks, one)
    compute(blocks, one)
    blocks.release(one)
    return one


@settings(max_examples=200)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["more", "compute", "rewind", "leave"]), st.integers(1, 9))),
    st.booleans(),
    st.booleans(),
)
def test_any_history_keeps_account_of_every_block(
    events: list[tuple[int, str, int]], caching: bool, copying: bool
) -> None:
    # What the cache of a computed block would hold: everything up to the block's end.
    contents: dict[int, tuple[int, ...]] = {}

    def copy_block(source: int, target: int) -> None:
        contents[target] = contents[source]

    blocks = manager(prefix_caching=caching, copy_block=copy_block if copying else None)
    held: dict[int, Sequence] = {}
    for who, what, number in events:
        if who not in held:
            # Few different tokens, so that many begin alike.
            one = of([number % 2] * number + [who])
            if admit(blocks, one):
                held[who] = one
                assert copying or one.num_computed % BLOCK_SIZE == 0
                for index in range(-(-one.num_computed // BLOCK_SIZE)):
                    upto = tuple(one.token_ids_between(0, min((index + 1) * BLOCK_SIZE, one.num_computed)))
                    held_there = contents[one.block_table[index]]
                    assert held_there[: len(upto)] == upto, "a known block holds what the sequence needs"
                assert one.num_computed < one.num_tokens
            else:
                assert one.block_table == []
        elif what == "leave":
            blocks.release(held.pop(who))
        elif what == "compute":
            one = held[who]
            for index in range(one.num_computed // BLOCK_SIZE, len(one.block_table)):
                contents[one.block_table[index]] = tuple(one.token_ids_between(0, (index + 1) * BLOCK_SIZE))
            compute(blocks, one)
        elif what == "rewind":
            take_back(blocks, held[who], number)
            if not blocks.grow(held[who]):
                blocks.release(held.pop(who))
        elif held[who].num_computed == held[who].num_tokens:
            one = held[who]
            before = list(one.block_table)
            list.append(one.output_token_ids, number % 2)
            if not blocks.grow(one):
                list.pop(one.output_token_ids)
            assert one.block_table[: len(before)] == before
        check_account(blocks, list(held.values()), caching=caching)
    for one in held.values():
        blocks.release(one)
    assert (blocks.num_free, blocks.num_used) == (blocks.num_total, 0)
    # Every block can still be had, each once.
    everything = of([77] * blocks.num_total * BLOCK_SIZE)
    assert admit(blocks, everything)
    assert sorted(everything.block_table) == list(range(1, NUM_BLOCKS))


def check_account(blocks: BlockManager, held: list[Sequence], *, caching: bool) -> None:
    used = [block for one in held for block in one.block_table]
    assert set(used) <= set(range(1, NUM_BLOCKS))
    assert NULL_BLOCK not in used
    assert blocks.num_used == len(set(used))
    assert blocks.num_free + blocks.num_used == NUM_BLOCKS - 1
    for one in held:
        assert len(set(one.block_table)) == len(one.block_table) == -(-one.num_tokens // BLOCK_SIZE)
    for block in set(used):
        holders = [one for one in held if block in one.block_table]
        # Whoever writes into a block has it alone.
        writers = [one for one in holders if one.block_table.index(block) >= one.num_computed // BLOCK_SIZE]
        assert len(holders) == 1 or (caching and not writers)


@pytest.mark.parametrize("length", [1, BLOCK_SIZE - 1, BLOCK_SIZE, BLOCK_SIZE + 1, 3 * BLOCK_SIZE])
def test_a_sequence_gets_no_more_blocks_than_its_tokens_need(length: int) -> None:
    blocks, one = manager(), of([1] * length)
    assert admit(blocks, one)
    assert len(one.block_table) == -(-length // BLOCK_SIZE)
    assert blocks.grow(one)
    assert len(one.block_table) == -(-length // BLOCK_SIZE)


def test_running_out_of_blocks_is_told_and_takes_none() -> None:
    blocks, one, long = manager(), of([1]), of([1] * NUM_BLOCKS * BLOCK_SIZE)
    assert not admit(blocks, long)
    assert (long.block_table, long.num_cached_tokens, blocks.num_free) == ([], None, NUM_BLOCKS - 1)
    assert admit(blocks, one)
    one.output_token_ids += [2] * NUM_BLOCKS * BLOCK_SIZE
    assert not blocks.grow(one)
    assert (len(one.block_table), blocks.num_free) == (1, NUM_BLOCKS - 2)


def test_spare_blocks_stay_free() -> None:
    blocks = manager()
    assert not admit(blocks, of([1] * 2 * BLOCK_SIZE), spare=NUM_BLOCKS - 2)
    assert admit(blocks, of([1] * 2 * BLOCK_SIZE), spare=NUM_BLOCKS - 3)
    # Blocks that are found among the free ones are no longer free either.
    blocks = manager()
    serve(blocks, [1] * 9)
    assert not admit(blocks, of([1] * 9), spare=NUM_BLOCKS - 3)
    assert admit(blocks, of([1] * 9), spare=NUM_BLOCKS - 4)


# Sharing


def test_a_prefix_is_found_once_it_is_computed_and_not_before() -> None:
    blocks = manager()
    first, second = of(list(range(10))), of(list(range(10)))
    assert admit(blocks, first)
    assert blocks.find_prefix(second).blocks == []
    first.num_computed = 7
    blocks.share_computed(first)
    assert blocks.find_prefix(second).blocks == first.block_table[:1]
    compute(blocks, first)
    assert blocks.find_prefix(second).blocks == first.block_table[:2]


@pytest.mark.parametrize(("length", "found"), [(1, 0), (4, 0), (5, 4), (7, 4), (8, 4), (9, 8), (40, 16)])
def test_whole_blocks_are_found_and_the_last_token_is_left_to_compute(length: int, found: int) -> None:
    blocks = manager()
    serve(blocks, list(range(16)))
    one = of(list(range(length)))
    assert admit(blocks, one)
    assert (one.num_computed, one.num_cached_tokens) == (found, found)


def test_a_block_is_only_shared_behind_the_same_beginning() -> None:
    blocks = manager()
    serve(blocks, [1, 2, 3, 4, 5, 6, 7, 8])
    assert blocks.find_prefix(of([9, 9, 9, 9, 5, 6, 7, 8, 1])).blocks == []
    assert blocks.find_prefix(of([5, 6, 7, 8, 1])).blocks == []
    assert len(blocks.find_prefix(of([1, 2, 3, 4, 5, 6, 7, 9, 1])).blocks) == 1


def test_a_block_is_shared_with_the_same_salt_alone() -> None:
    # With copies, a part of a block would be found too.
    blocks = manager(copy_block=lambda *_: None, record_events=True)
    tokens = list(range(10))
    salted = sequence(tokens, max_model_len=1000, cache_salt="of one tenant")
    assert admit(blocks, salted)
    compute(blocks, salted)
    for other in (of(tokens), sequence(tokens, max_model_len=1000, cache_salt="of another")):
        found = blocks.find_prefix(other)
        assert (found.blocks, found.num_copied) == ([], 0)
    same = sequence([*tokens, 11], max_model_len=1000, cache_salt="of one tenant")
    assert blocks.find_prefix(same).blocks == salted.block_table[:2]
    (stored,) = blocks.take_events()
    assert isinstance(stored, BlockStored)
    assert stored.parent_block_hash is None


def test_output_is_found_by_the_next_turn_of_a_chat() -> None:
    blocks = manager()
    one = of([1, 2, 3])
    assert admit(blocks, one)
    for token in [4, 5, 6, 7, 8, 9]:
        compute(blocks, one)
        one.output_token_ids.append(token)
        assert blocks.grow(one)
    blocks.release(one)
    # The last token was sampled, and never computed.
    assert len(blocks.find_prefix(of([1, 2, 3, 4, 5, 6, 7, 8, 9, 10])).blocks) == 2


def test_two_that_compute_the_same_at_once_both_keep_their_blocks() -> None:
    blocks = manager()
    first, second = of([1] * 9), of([1] * 9)
    assert admit(blocks, first)
    assert admit(blocks, second)
    compute(blocks, first)
    compute(blocks, second)
    assert not set(first.block_table) & set(second.block_table)
    blocks.release(second)
    assert blocks.find_prefix(of([1] * 9)).blocks == first.block_table[:2]
    blocks.release(first)
    assert blocks.num_free == blocks.num_total


def test_the_block_that_was_left_longest_ago_goes_first_and_tails_before_heads() -> None:
    blocks = manager()
    serve(blocks, [1] * 13)
    serve(blocks, [2] * 13)
    assert admit(blocks, of([3] * (NUM_BLOCKS - 1 - 6 + 2) * BLOCK_SIZE))
    assert len(blocks.find_prefix(of([1] * 13)).blocks) == 1
    assert len(blocks.find_prefix(of([2] * 13)).blocks) == 3


def test_a_block_that_somebody_holds_is_not_taken() -> None:
    blocks = manager()
    serve(blocks, [1] * 9)
    holder = of([1] * 9)
    assert admit(blocks, holder)
    rest = of([2] * (NUM_BLOCKS - 1 - 3) * BLOCK_SIZE)
    assert admit(blocks, rest)
    assert blocks.num_free == 0
    assert not set(holder.block_table) & set(rest.block_table)
    assert len(blocks.find_prefix(of([1] * 9)).blocks) == 2


def test_a_sequence_that_comes_back_finds_its_own_blocks_and_keeps_its_first_count() -> None:
    blocks = manager()
    one = of([1] * 9)
    assert admit(blocks, one)
    compute(blocks, one)
    blocks.release(one)
    assert (one.block_table, one.num_computed) == ([], 0)
    assert admit(blocks, one)
    assert (one.num_computed, one.num_cached_tokens) == (8, 0)


def test_lookups_and_hits_are_counted_in_tokens_once_a_sequence() -> None:
    blocks = manager()
    one = serve(blocks, [1] * 9)
    assert (blocks.num_queried_tokens, blocks.num_hit_tokens) == (9, 0)
    serve(blocks, [1] * 6)
    assert (blocks.num_queried_tokens, blocks.num_hit_tokens) == (15, 4)
    assert admit(blocks, one)
    assert (blocks.num_queried_tokens, blocks.num_hit_tokens) == (15, 4)


def test_without_prefix_caching_nothing_is_found_or_hashed() -> None:
    blocks = manager(prefix_caching=False, record_events=True)
    one = serve(blocks, [1] * 9)
    assert blocks.find_prefix(of([1] * 9)).blocks == []
    assert (one.block_hashes, one.num_cached_tokens) == ([], 0)
    assert (blocks.num_queried_tokens, blocks.take_events()) == (0, [])


@settings(max_examples=100)
@given(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=20), max_size=20))
def test_who_follows_the_events_knows_what_can_be_found(prompts: list[list[int]]) -> None:
    blocks = manager(record_events=True)
    known: dict[int, tuple[int, ...]] = {}
    for prompt in prompts:
        one = serve(blocks, prompt)
        for event in blocks.take_events():
            if isinstance(event, BlockStored):
                upto = () if event.parent_block_hash is None else known[event.parent_block_hash]
                assert len(event.token_ids) == BLOCK_SIZE * len(event.block_hashes)
                for index, name in enumerate(event.block_hashes):
                    assert name not in known
                    upto += tuple(event.token_ids[index * BLOCK_SIZE : (index + 1) * BLOCK_SIZE])
                    known[name] = upto
            else:
                assert isinstance(event, BlockRemoved)
                for name in event.block_hashes:
                    del known[name]
        full = [tuple(prompt[: end + 1]) for end in range(BLOCK_SIZE - 1, len(prompt), BLOCK_SIZE)]
        assert set(full) <= set(known.values())
        assert len(set(known.values())) == len(known) <= blocks.num_total
        assert len(blocks.find_prefix(of([*prompt, 5])).blocks) == len(one.block_hashes)


def test_a_known_block_stays_as_it_is_after_a_rewind_into_it() -> None:
    blocks = manager(prefix_caching=True)
    one = of([5] * 7)
    assert admit(blocks, one)
    compute(blocks, one)
    more(blocks, one, 5)
    known = list(one.block_table)
    take_back(blocks, one, 1)
    assert (one.num_computed, one.num_known_blocks) == (BLOCK_SIZE, 1)
    more(blocks, one, 6)
    assert one.block_table[0] == known[0]
    assert one.block_table[1] != known[1]
    # Both blocks are found by the tokens that they hold.
    for token, block in ((5, known[1]), (6, one.block_table[1])):
        other = of([5] * 7 + [token, 9])
        assert admit(blocks, other)
        assert other.block_table[:2] == [known[0], block]
        assert other.num_computed == 2 * BLOCK_SIZE


def test_a_rewind_frees_the_blocks_after_the_tokens_that_are_left() -> None:
    blocks = manager(prefix_caching=True)
    one = of([5, 6])
    assert admit(blocks, one)
    compute(blocks, one)
    more(blocks, one, 1, 2, 3, 4, 5, 6, 7)
    take_back(blocks, one, 6)
    # The last token that is left is computed again, in another block: the first one is known.
    assert (one.num_tokens, one.num_computed, one.block_table) == (3, 0, [])
    assert blocks.num_used == 0
