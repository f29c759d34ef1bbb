"""Batch updates follow vLLM's rules, and always end with the requests in slot order."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.batch_slots import Slots

from fastdeploy_lp.logits_processor.dialects.batch_tracker import BatchTracker
from fastdeploy_lp.logits_processor.vllm_v1 import BatchUpdate, MoveDirectionality

SWAP, ONE_WAY = MoveDirectionality.SWAP, MoveDirectionality.UNIDIRECTIONAL


class Follower:
    """A batch-level processor's own table, kept by the document's words; refuses updates that break its rules."""

    def __init__(self) -> None:
        self.rows: dict[int, str] = {}

    def follow(self, update: BatchUpdate | None, ids: Mapping[int, str]) -> None:
        """`ids` maps the identity of each output list to its request."""
        if update is None:
            return
        freed = set(update.removed)
        assert len(freed) == len(update.removed)
        assert freed <= set(self.rows)
        before = len(self.rows)
        for row in update.removed:
            del self.rows[row]
        for row, _, _, output_ids in update.added:
            self.rows[row] = ids[id(output_ids)]
        for source, target, direction in update.moved:
            moved, replaced = self.rows.pop(source), self.rows.pop(target, None)
            self.rows[target] = moved
            if direction is SWAP:
                assert replaced is not None
                self.rows[source] = replaced
            else:
                assert replaced is None
        assert sorted(self.rows) == list(range(update.batch_size))
        assert max([before, *(row + 1 for row, *_ in update.added)]) <= before + len(update.added)


def assert_rules(update: BatchUpdate, old: list[str], new: list[str]) -> None:
    """What the document promises beyond the outcome."""
    assert update.batch_size == len(new)
    gone = [row for row, request_id in enumerate(old) if request_id not in new]
    added_rows = [row for row, *_ in update.added]
    coming = [request_id for request_id in new if request_id not in old]
    # New requests take freed rows, lowest first, then extend the batch.
    assert added_rows == (gone + list(range(len(old), len(old) + len(coming))))[: len(coming)]
    # Removed are the rows that nobody took.
    assert list(update.removed) == gone[len(coming) :]
    directions = [direction for *_, direction in update.moved]
    condensing = [(source, target) for source, target, direction in update.moved if direction is ONE_WAY]
    assert directions == [ONE_WAY] * len(condensing) + [SWAP] * (len(directions) - len(condensing))
    # The highest rows go to the lowest holes.
    assert [target for _, target in condensing] == sorted(target for _, target in condensing)
    assert [source for source, _ in condensing] == sorted((source for source, _ in condensing), reverse=True)
    assert all(source > target for source, target in condensing)
    assert {target for _, target in condensing} <= set(update.removed)
    assert all(source != target for source, target, _ in update.moved)


def churn(rng: random.Random, slots: Slots, count: int, upcoming: list[str]) -> None:
    """Some leave, some come, some pause or go on."""
    arrays = slots.arrays
    held = [slot for slot in range(count) if arrays["req_ids"][slot]]
    for slot in rng.sample(held, rng.randint(0, len(held)) if rng.random() < 0.5 else 0):
        slots.leave(slot)
    for _ in range(rng.choice([0, 0, 1, 2, 5])):
        free = [slot for slot in range(count) if not arrays["req_ids"][slot]]
        if free and upcoming:
            slots.enter(rng.choice(free), upcoming.pop())
    for slot in range(count):
        if arrays["req_ids"][slot]:
            arrays["stop_flags"][slot] = rng.random() < 0.15


@pytest.mark.parametrize("seed", range(12))
def test_fifty_requests_that_come_and_go_are_always_followed_in_slot_order(seed: int) -> None:
    rng = random.Random(seed)
    count = rng.choice([2, 5, 16])
    slots, tracker, follower = Slots(count), BatchTracker(), Follower()
    upcoming = [f"r{index}" for index in range(50)]
    unchanged = changed = 0
    while upcoming or slots.in_order:
        churn(rng, slots, count, upcoming)
        old, new = [follower.rows[row] for row in sorted(follower.rows)], slots.in_order
        update = tracker.update(slots.arrays)
        assert (update is None) == (old == new)
        if update is None:
            unchanged += 1
        else:
            changed += 1
            assert_rules(update, old, new)
            follower.follow(
                update,
                {id(slots.arrays["output_token_ids"][slot]): slots.arrays["req_ids"][slot] for slot in range(count)},
            )
        assert [follower.rows[row] for row in range(len(new))] == new
        if not upcoming:
            for slot in range(count):
                if rng.random() < 0.5:
                    slots.leave(slot)
    assert changed > 10
    assert unchanged > 0


@settings(max_examples=100)
@given(st.lists(st.lists(st.sampled_from("abcdefgh"), unique=True, max_size=8), min_size=1, max_size=8))
def test_any_batch_can_follow_any_other(batches: list[list[str]]) -> None:
    tracker, follower = BatchTracker(), Follower()
    for batch in batches:
        slots = Slots(8)
        for slot, request_id in enumerate(batch):
            slots.enter(slot, request_id)
        old = [follower.rows[row] for row in sorted(follower.rows)]
        update = tracker.update(slots.arrays)
        assert (update is None) == (old == batch)
        if update is not None:
            assert_rules(update, old, batch)
            follower.follow(update, slots.owners)
        assert [follower.rows[row] for row in range(len(batch))] == batch


def test_an_added_request_comes_with_its_own_arguments_and_live_output() -> None:
    slots, tracker = Slots(3), BatchTracker()
    slots.enter(2, "with", {"target_token": 7})
    slots.enter(1, "without")
    update = tracker.update(slots.arrays)
    assert update is not None
    (first_row, first, _, _), (row, params, prompt_ids, output_ids) = update.added
    assert (first_row, first.extra_args, row, params.extra_args) == (0, None, 1, {"target_token": 7})
    assert (params.seed, prompt_ids) == (2, [2, 4])
    assert output_ids is slots.arrays["output_token_ids"][2]
    assert slots.arrays["sampling_params"][2].extra_args is None


def test_a_pause_is_a_removal_and_going_on_an_addition() -> None:
    slots, tracker = Slots(2), BatchTracker()
    slots.enter(0, "a")
    slots.enter(1, "b")
    assert tracker.update(slots.arrays) is not None
    assert tracker.update(slots.arrays) is None
    slots.arrays["stop_flags"][0] = True
    update = tracker.update(slots.arrays)
    assert update is not None
    assert (update.batch_size, list(update.removed), update.added, list(update.moved)) == (
        1,
        [0],
        [],
        [(1, 0, ONE_WAY)],
    )
    slots.arrays["stop_flags"][0] = False
    update = tracker.update(slots.arrays)
    assert update is not None
    assert [row for row, *_ in update.added] == [1]
    assert list(update.moved) == [(1, 0, SWAP)]


def test_a_row_with_state_swaps_with_one_without() -> None:
    """vLLM's asymmetric swap: what was at the other row must not stay behind."""
    slots, tracker = Slots(3), BatchTracker()
    slots.enter(1, "stateful", {"x": 1})
    state: dict[int, str] = {}

    def follow() -> BatchUpdate:
        update = tracker.update(slots.arrays)
        assert update is not None
        for row in update.removed:
            state.pop(row, None)
        for row, params, _, _ in update.added:
            state.pop(row, None)
            if params.extra_args:
                state[row] = "stateful"
        for source, target, direction in update.moved:
            moved, other = state.pop(source, None), state.pop(target, None)
            if moved is not None:
                state[target] = moved
            if direction is SWAP and other is not None:
                state[source] = other
        return update

    follow()
    assert state == {0: "stateful"}
    slots.enter(0, "plain")
    assert list(follow().moved) == [(1, 0, SWAP)]
    assert state == {1: "stateful"}
    slots.leave(0)
    slots.enter(2, "other")
    follow()
    assert state == {0: "stateful"}


def test_an_empty_batch_is_followed_too() -> None:
    slots, tracker = Slots(2), BatchTracker()
    assert tracker.update(slots.arrays) is None
    slots.enter(0, "a")
    slots.enter(1, "b")
    tracker.update(slots.arrays)
    slots.leave(0)
    slots.leave(1)
    assert tracker.update(slots.arrays) == BatchUpdate(0, [0, 1], [], [])


def test_a_request_that_takes_a_freed_row_is_brought_into_order_by_a_swap() -> None:
    slots, tracker = Slots(3), BatchTracker()
    slots.enter(0, "a")
    slots.enter(1, "b")
    tracker.update(slots.arrays)
    slots.leave(0)
    slots.enter(2, "c")
    update = tracker.update(slots.arrays)
    assert update is not None
    assert ([row for row, *_ in update.added], list(update.removed), list(update.moved)) == ([0], [], [(1, 0, SWAP)])
