from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from support.sequences import sequence

from fastdeploy_lp.worker.block_manager import BlockManager
from fastdeploy_lp.worker.scheduler import Scheduler
from fastdeploy_lp.worker.sequence import NO_SLOT, Sequence

SLOTS = 3
MAX_PREFILL = 20
BLOCK_SIZE = 4
NUM_BLOCKS = 1 + SLOTS * 10


def scheduler() -> tuple[Scheduler, BlockManager]:
    blocks = BlockManager(NUM_BLOCKS, BLOCK_SIZE)
    return Scheduler(SLOTS, MAX_PREFILL, blocks), blocks


def waiting(name: str, length: int = 1) -> Sequence:
    return sequence([1] * length, request_id=name)


def ids(sequences: list[Sequence]) -> list[str]:
    return [one.request_id for one in sequences]


def test_a_new_scheduler_has_nothing_to_do() -> None:
    fresh, _ = scheduler()
    assert not fresh.has_work
    assert fresh.admit() == []
    assert fresh.running() == []


def test_first_come_first_served_into_the_lowest_free_slots() -> None:
    queue, _ = scheduler()
    for name in "abcde":
        queue.add(waiting(name))
    assert [(s.request_id, s.slot) for s in queue.admit()] == [("a", 0), ("b", 1), ("c", 2)]
    assert (queue.num_running, queue.num_waiting) == (3, 2)
    assert queue.admit() == []


def test_a_freed_slot_goes_to_the_next_in_line_and_running_stays_in_slot_order() -> None:
    queue, _ = scheduler()
    for name in "abcde":
        queue.add(waiting(name))
    a, b, _ = queue.admit()
    queue.running()
    queue.release(b)
    assert b.slot == NO_SLOT
    queue.release(a)
    assert [(s.request_id, s.slot) for s in queue.admit()] == [("d", 0), ("e", 1)]
    assert ids(queue.running()) == ["d", "e", "c"]


def test_prompts_that_do_not_fit_into_one_step_wait_for_the_next() -> None:
    queue, _ = scheduler()
    for name, length in (("a", 12), ("b", 8), ("c", 1)):
        queue.add(waiting(name, length))
    assert ids(queue.admit()) == ["a", "b"]
    assert ids(queue.admit()) == ["c"]


def test_a_long_prompt_is_not_overtaken() -> None:
    queue, _ = scheduler()
    for name, length in (("a", 1), ("long", 20), ("c", 1)):
        queue.add(waiting(name, length))
    assert ids(queue.admit()) == ["a"]
    assert ids(queue.admit()) == ["long"]
    assert ids(queue.admit()) == ["c"]


def test_the_longest_prompt_is_admitted_by_itself() -> None:
    queue, _ = scheduler()
    queue.add(waiting("long", MAX_PREFILL + 10))
    assert ids(queue.admit()) == ["long"]


def test_running_sequences_have_blocks_for_all_of_their_tokens() -> None:
    queue, blocks = scheduler()
    for name, length in (("a", 5), ("b", 4)):
        queue.add(waiting(name, length))
    a, b = queue.admit()
    queue.running()
    assert (len(a.block_table), len(b.block_table)) == (2, 1)
    b.output_token_ids.append(1)
    queue.running()
    assert (len(a.block_table), len(b.block_table)) == (2, 2)
    queue.release(a)
    queue.release(b)
    assert blocks.num_free == NUM_BLOCKS - 1


def test_waiting_requests_that_are_taken_out_are_gone_and_running_ones_are_given_back() -> None:
    queue, _ = scheduler()
    for name in "abcde":
        queue.add(waiting(name))
    queue.admit()
    queue.running()
    taken = queue.take_out({"b", "d", "unknown"})
    assert ids(taken) == ["b"]
    assert (queue.num_running, queue.num_waiting) == (3, 1)
    for one in taken:
        queue.release(one)
    assert ids(queue.admit()) == ["e"]
    assert ids(queue.running()) == ["a", "e", "c"]


def test_there_is_work_while_anybody_waits_or_runs() -> None:
    queue, _ = scheduler()
    queue.add(waiting("a"))
    assert queue.has_work
    (a,) = queue.admit()
    assert queue.has_work
    queue.release(a)
    assert not queue.has_work
    queue.add(waiting("b"))
    queue.take_out({"b"})
    assert not queue.has_work


@settings(deadline=None, max_examples=100)
@given(st.lists(st.one_of(st.integers(1, 30), st.sampled_from(["step", "release"])), max_size=40), st.randoms())
def test_any_history_keeps_slots_apart_and_serves_in_order(events: list[int | str], rng: random.Random) -> None:
    queue, blocks = scheduler()
    admitted: list[int] = []
    added = 0
    for event in events:
        if isinstance(event, int):
            queue.add(waiting(str(added), event))
            added += 1
        elif event == "step":
            new = queue.admit()
            assert len(new) <= 1 or sum(s.num_tokens for s in new) <= MAX_PREFILL
            admitted += [int(s.request_id) for s in new]
            running = queue.running()
            slots = [s.slot for s in running]
            assert slots == sorted(set(slots))
            assert set(slots) <= set(range(SLOTS))
            assert len(slots) == queue.num_running
            # Nobody waits beside a free slot without a reason.
            assert queue.num_waiting == 0 or queue.num_running == SLOTS or new
        elif running := queue.running():
            queue.release(running[rng.randrange(len(running))])
    assert admitted == list(range(len(admitted)))
    assert queue.num_waiting == added - len(admitted)
    for one in queue.running():
        queue.release(one)
    assert blocks.num_free == NUM_BLOCKS - 1
