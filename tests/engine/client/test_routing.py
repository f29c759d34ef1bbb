"""Where requests go: least loaded, with a preference for who knows the prompt."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastdeploy_lp.engine.client.routing import GivenPrefixes, Router, chain_of

BLOCK = 4
SLOTS = 8


def router(workers: int = 2, *, num_blocks: int = 64, prefix_affine: bool = True) -> Router:
    return Router(workers, SLOTS, BLOCK, num_blocks, prefix_affine=prefix_affine)


def prompt(seed: int, length: int = 5 * BLOCK) -> list[int]:
    source = random.Random(seed)
    return [source.randrange(1000) for _ in range(length)]


def test_equal_workers_take_turns() -> None:
    three = router(3)
    assert [three.choose(prompt(seed), [0, 0, 0]) for seed in range(6)] == [0, 1, 2, 0, 1, 2]


def test_the_least_loaded_is_chosen() -> None:
    assert router(3).choose(prompt(1), [5, 2, 7]) == 1


def test_a_known_prompt_goes_where_it_was() -> None:
    two = router()
    first = two.choose(prompt(1), [0, 0])
    two.choose(prompt(2), [1, 1])
    loads: list[int | None] = [0, 0]
    loads[first] = 1
    assert [two.choose([*prompt(1), seed], loads) for seed in range(4)] == [first] * 4


def test_a_known_prompt_does_not_queue_behind_a_crowd() -> None:
    two = router()
    first = two.choose(prompt(1), [0, 0])
    loads: list[int | None] = [0, 0]
    loads[first] = 3
    assert two.choose(prompt(1), loads) != first


def test_a_free_slot_beats_a_known_prompt() -> None:
    two = router()
    first = two.choose(prompt(1), [0, 0])
    loads: list[int | None] = [SLOTS - 1, SLOTS - 1]
    loads[first] = SLOTS
    assert two.choose(prompt(1), loads) != first


def test_a_new_worker_knows_nothing() -> None:
    two = router()
    first = two.choose(prompt(1), [0, 0])
    two.forget(first)
    assert two.choose(prompt(1), [0, 0]) != first


def test_without_prefix_caching_the_load_alone_counts() -> None:
    two = router(prefix_affine=False)
    assert [two.choose(prompt(1), [0, 0]) for _ in range(4)] == [0, 1, 0, 1]


def test_nobody_there() -> None:
    with pytest.raises(ValueError, match="no worker takes requests"):
        router().choose(prompt(1), [None, None])


@given(st.lists(st.one_of(st.none(), st.integers(0, 2 * SLOTS)), min_size=1, max_size=6), st.integers(0, 3))
def test_the_choice_is_never_absurd(loads: list[int | None], seed: int) -> None:
    """Only a worker that takes requests, never one without a slot while another has one, and none far busier."""
    chosen = router(len(loads))
    present = [load for load in loads if load is not None]
    if not present:
        return
    for _ in range(3):
        load = loads[chosen.choose(prompt(seed), loads)]
        assert load is not None
        assert load < SLOTS or min(present) >= SLOTS
        assert load <= min(present) + SLOTS / 4


def test_load_stays_even_when_all_prompts_begin_alike() -> None:
    """Fairness: with a prefix that everybody shares no worker gets away from the others by more than the bonus."""
    source, four = random.Random(7), router(4, num_blocks=1024)
    loads = [0] * 4
    for seed in range(400):
        loads[four.choose([*prompt(0), seed], list(loads))] += 1
        assert max(loads) - min(loads) <= SLOTS // 4 + 1
        if sum(loads) >= 2 * SLOTS:
            busy = source.choice([index for index, load in enumerate(loads) if load])
            loads[busy] -= 1


def test_conversations_stay_where_they_began() -> None:
    source, two = random.Random(3), router(num_blocks=4096)
    talks = [prompt(seed, 40) for seed in range(20)]
    homes: list[set[int]] = [set() for _ in talks]
    for _ in range(200):
        index = source.randrange(len(talks))
        homes[index].add(two.choose(talks[index], [0, 0]))
        talks[index] += prompt(source.randrange(10**6), 9)
    assert [len(home) for home in homes] == [1] * len(talks)
    assert set(Counter(next(iter(home)) for home in homes)) == {0, 1}


@given(st.lists(st.lists(st.integers(0, 3), max_size=60), max_size=20))
def test_what_is_remembered_is_bounded(prompts: list[list[int]]) -> None:
    known = GivenPrefixes(BLOCK, capacity=10)
    for each in prompts:
        known.add(list(chain_of(each, BLOCK)))
        assert len(known) <= 10


def test_beginnings_are_forgotten_last() -> None:
    known = GivenPrefixes(BLOCK, capacity=6)
    first, second = (list(chain_of(prompt(seed, 5 * BLOCK), BLOCK)) for seed in (1, 2))
    known.add(first)
    known.add(second)
    assert known.known_share(second) == 1.0
    assert known.known_share(first) == 0.2


@given(st.lists(st.integers(0, 1), max_size=40), st.lists(st.integers(0, 1), max_size=40))
def test_chains_tell_beginnings(one: list[int], other: list[int]) -> None:
    """Two prompts share as many names as full blocks from the first token on."""
    same = 0
    while same < min(len(one), len(other)) and one[same] == other[same]:
        same += 1
    shared = set(chain_of(one, BLOCK)) & set(chain_of(other, BLOCK))
    assert len(shared) == same // BLOCK
