from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastdeploy_lp.worker.block_manager import ROOT, PrefixCache, block_hash, published_hash
from fastdeploy_lp.worker.kv_events import BlockRemoved, BlockStored

tokens = st.lists(st.integers(0, 2**31), max_size=8)
A, B, C = (block_hash(ROOT, [number]) for number in (1, 2, 3))


@given(tokens, tokens, tokens, tokens)
def test_blocks_have_the_same_hash_only_with_the_same_tokens_behind_the_same_parent(
    parent: list[int], one: list[int], other_parent: list[int], other: list[int]
) -> None:
    same = (parent, one) == (other_parent, other)
    assert same == (block_hash(block_hash(ROOT, parent), one) == block_hash(block_hash(ROOT, other_parent), other))


def test_another_process_gives_the_same_hash() -> None:
    program = (
        "from fastdeploy_lp.worker.block_manager import ROOT, block_hash; "
        "print(block_hash(block_hash(ROOT, [1, 2]), [3, 2**40]).hex())"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == block_hash(block_hash(ROOT, [1, 2]), [3, 2**40]).hex()


@given(st.binary(min_size=16, max_size=16))
def test_published_hashes_are_unsigned_and_fit_into_64_bits(name: bytes) -> None:
    assert 0 <= published_hash(name) < 2**64


def test_a_chain_is_found_up_to_the_first_gap() -> None:
    cache = PrefixCache(1)
    cache.store([5], [A], ROOT, [1])
    cache.store([7], [C], B, [3])
    assert cache.find([A, B, C]) == [5]
    cache.store([6], [B], A, [2])
    assert cache.find([A, B, C]) == [5, 6, 7]
    cache.forget(5)
    assert cache.find([A, B, C]) == []
    assert (5 in cache, 6 in cache, len(cache)) == (False, True, 2)


def test_the_first_block_of_a_name_keeps_it() -> None:
    cache = PrefixCache(1, record_events=True)
    cache.store([5], [A], ROOT, [1])
    cache.store([6], [A], ROOT, [1])
    assert cache.find([A]) == [5]
    assert 6 not in cache
    assert len(cache.take_events()) == 1


@pytest.mark.parametrize("record", [True, False])
def test_events_tell_runs_of_new_blocks_and_what_was_forgotten(record: bool) -> None:
    cache = PrefixCache(2, record_events=record)
    cache.store([2], [B], A, [12, 13])
    first = cache.take_events()
    cache.store([1, 9, 3], [A, B, C], ROOT, [10, 11, 12, 13, 14, 15])
    cache.forget(2)
    cache.forget(3)
    a, b, c = map(published_hash, (A, B, C))
    events = [
        BlockStored([a], None, [10, 11], 2),
        BlockStored([c], b, [14, 15], 2),
        BlockRemoved([b, c]),
    ]
    assert first == ([BlockStored([b], a, [12, 13], 2)] if record else [])
    assert cache.take_events() == (events if record else [])
    assert cache.take_events() == []


@given(st.lists(st.lists(st.integers(0, 2), min_size=4, max_size=4)), st.lists(st.integers(0, 2), max_size=4))
def test_the_block_with_the_longest_common_beginning_is_found(blocks: list[list[int]], wanted: list[int]) -> None:
    cache = PrefixCache(4)
    for block, own in enumerate(blocks, 1):
        cache.store([block], [block_hash(A, own)], A, own, "one")
        cache.store([-block], [block_hash(B, own)], B, own, "one")
    kept = {block: own for block, own in enumerate(blocks, 1) if block % 2 or block not in cache}
    for block in set(range(1, len(blocks) + 1)) - set(kept):
        cache.forget(block)
    common = [
        sum(1 for length in range(1, 5) if own[:length] == wanted[:length])
        for block, own in kept.items()
        if block in cache
    ]
    block, count = cache.find_part(A, wanted, "one")
    assert count == max(common, default=0)
    assert count == 0 or (block in cache and blocks[block - 1][:count] == wanted[:count])
    assert cache.find_part(C, wanted, "one") == cache.find_part(A, wanted, "another") == (0, 0)
