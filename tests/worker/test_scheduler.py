from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sequences import sequence

from fastdeploy_lp.config import SchedulerConfig
from fastdeploy_lp.logits_processor import ProcessorStats, Selection
from fastdeploy_lp.worker.block_manager import BlockManager
from fastdeploy_lp.worker.drafters.drafter import Draft
from fastdeploy_lp.worker.fairness import FIRST_TOKENS, StepPace
from fastdeploy_lp.worker.scheduled import ScheduledChunk
from fastdeploy_lp.worker.scheduler import Scheduler
from fastdeploy_lp.worker.sequence import NO_SLOT, Sequence

SLOTS = 3
BUDGET = 20
BLOCK_SIZE = 4
MAX_MODEL_LEN = 40
FULL_LENGTH = MAX_MODEL_LEN // BLOCK_SIZE


class SlotBook:
    """Who is in which slot; nobody may enter a taken one or leave an empty one."""

    def __init__(self) -> None:
        self.taken: dict[int, str] = {}
        self.entered: list[str] = []
        self.held, self.computes_ahead = set[int](), False

    def holds(self, slot: int) -> bool:
        return slot in self.held

    def drafts(self, sequences: Iterable[Sequence], tokens: int, room: int) -> Mapping[int, Draft]:
        return {}

    def enter(self, sequence: Sequence) -> None:
        assert sequence.slot not in self.taken
        self.taken[sequence.slot] = sequence.request_id
        self.entered.append(sequence.request_id)

    def leave(self, slot: int) -> None:
        del self.taken[slot]


class Queue(Scheduler):
    """A scheduler whose steps compute nothing but are counted as if they did."""

    def __init__(
        self,
        *,
        slots: int = SLOTS,
        budget: int = BUDGET,
        num_blocks: int = SLOTS * FULL_LENGTH,
        caching: bool = True,
        fair: bool = False,
    ) -> None:
        self.blocks = BlockManager(1 + num_blocks, BLOCK_SIZE, prefix_caching=caching)
        self.book = SlotBook()
        super().__init__(SchedulerConfig(slots, budget, fair_queue=fair), self.blocks, self.book)

    def step(self, *, token: int = 9) -> list[ScheduledChunk]:
        """Schedule, and let every chunk that samples get a token."""
        chunks = self.schedule()
        for chunk in chunks:
            chunk.sequence.num_computed += chunk.num_tokens
            self.blocks.share_computed(chunk.sequence)
            if chunk.samples:
                chunk.sequence.append(token)
                if chunk.sequence.finish_reason is not None:
                    self.release(chunk.sequence)
        return chunks


def waiting(name: str, length: int = 1, **params: Any) -> Sequence:
    """Prompts of different names have nothing in common."""
    seed = random.Random(name).randrange(10**9)
    return sequence([seed + i for i in range(length)], request_id=name, max_model_len=MAX_MODEL_LEN, **params)


def names(chunks: list[ScheduledChunk]) -> list[str]:
    return [name for name, _, _ in told(chunks)]


def told(chunks: list[ScheduledChunk]) -> list[tuple[str, int, int]]:
    return [(chunk.sequence.request_id, chunk.start, chunk.num_tokens) for chunk in chunks]


def test_a_new_scheduler_has_nothing_to_do() -> None:
    fresh = Queue()
    assert not fresh.has_work
    assert fresh.schedule() == []


def test_first_come_first_served_into_the_lowest_free_slots() -> None:
    queue = Queue()
    for name in "abcde":
        queue.add(waiting(name))
    assert [(c.sequence.request_id, c.sequence.slot) for c in queue.schedule()] == [("a", 0), ("b", 1), ("c", 2)]
    assert (queue.num_running, queue.num_waiting) == (3, 2)


def test_a_freed_slot_goes_to_the_next_in_line_and_chunks_stay_in_slot_order() -> None:
    queue = Queue()
    for name in "abcde":
        queue.add(waiting(name))
    a, b, _ = [chunk.sequence for chunk in queue.step()]
    queue.release(b)
    assert b.slot == NO_SLOT
    queue.release(a)
    assert [(c.sequence.request_id, c.sequence.slot) for c in queue.step()] == [("d", 0), ("e", 1), ("c", 2)]
    assert queue.book.taken == {0: "d", 1: "e", 2: "c"}


# Held slots


def test_a_held_sequence_has_no_row_and_the_others_go_on() -> None:
    queue = Queue()
    for name in "ab":
        queue.add(waiting(name))
    queue.step()
    queue.book.held = {0}
    assert [chunk.sequence.request_id for chunk in queue.step()] == ["b"]
    queue.book.held = {0, 1}
    assert queue.step() == []
    queue.book.held = set()
    assert [chunk.sequence.request_id for chunk in queue.step()] == ["a", "b"]


UPLOAD = Selection(named={"mine": {}}, order=("mine",), brought={"mine": "mine=/mine.wasm"})


def spend(queue: Queue) -> None:
    """Has an upload's turn beside another sequence take as long as many steps."""
    (pace := queue.uploads).enter(sequence([1], slot=SLOTS, selection=UPLOAD))
    pace.begin([SLOTS, SLOTS + 1])
    pace.took(1.01, {"mine": ProcessorStats("mine", seconds=1.0)})
    pace.leave(SLOTS)


def test_a_sequence_whose_upload_has_taken_long_has_no_row_beside_others() -> None:
    queue = Queue()
    queue.add(waiting("slow", 1, max_tokens=9, selection=UPLOAD))
    queue.step()
    spend(queue)
    queue.add(waiting("quick", 6, max_tokens=3))
    # The prompt of the other does not generate yet.
    assert [names(queue.step()) for _ in range(4)] == [["slow", "quick"], ["quick"], ["quick"], ["slow"]]


def test_the_prompt_of_such_a_sequence_is_computed_up_to_its_last_token() -> None:
    queue, slow = Queue(), waiting("slow", 6, max_tokens=1, selection=UPLOAD)
    queue.add(waiting("quick", 1, max_tokens=30))
    queue.step()
    spend(queue)
    queue.add(slow)
    assert [names(queue.step()) for _ in range(3)] == [["quick", "slow"], ["quick"], ["quick"]]
    assert slow.num_computed == slow.num_tokens - 1


def test_a_held_sequence_goes_on_if_all_others_are_preempted() -> None:
    queue = Queue(num_blocks=5)
    queue.add(waiting("slow", 7, max_tokens=20, selection=UPLOAD))
    queue.add(waiting("quick", 8, max_tokens=20))
    queue.step()
    spend(queue)
    assert [names(queue.step()) for _ in range(5)] == [*[["quick"]] * 4, ["slow"]]
    assert queue.num_preemptions == 1


def test_the_prompt_of_a_held_sequence_is_computed_up_to_its_last_token() -> None:
    queue = Queue()
    queue.book.held = {0, 1}
    queue.add(waiting("long", 25))
    queue.add(waiting("one"))
    assert told(queue.step()) == [("long", 0, 20)]
    assert told(queue.step()) == [("long", 20, 4)]
    assert queue.step() == []
    queue.book.held = set()
    assert told(queue.step()) == [("long", 24, 1), ("one", 0, 1)]


# Budget


def test_a_long_prompt_is_computed_in_pieces_and_samples_at_its_end() -> None:
    queue = Queue()
    queue.add(waiting("long", 38))
    first, second, third = [queue.step()[0] for _ in range(3)]
    assert [(c.start, c.num_tokens, c.samples) for c in (first, second, third)] == [
        (0, 20, False),
        (20, 18, True),
        (38, 1, True),
    ]


def test_generating_sequences_come_first_then_prompts_in_order_of_arrival() -> None:
    queue = Queue()
    queue.add(waiting("a", 3))
    queue.step()
    for name, length in (("b", 30), ("c", 12)):
        queue.add(waiting(name, length))
    assert told(queue.step()) == [("a", 3, 1), ("b", 0, 19)]
    assert told(queue.step()) == [("a", 4, 1), ("b", 19, 11), ("c", 0, 8)]
    assert told(queue.step()) == [("a", 5, 1), ("b", 30, 1), ("c", 8, 4)]


def test_nobody_is_overtaken_by_a_shorter_prompt() -> None:
    queue = Queue(budget=4)
    for name, length in (("long", 9), ("short", 1)):
        queue.add(waiting(name, length))
    assert told(queue.step()) == [("long", 0, 4)]
    assert told(queue.step()) == [("long", 4, 4)]
    assert told(queue.step()) == [("long", 8, 1), ("short", 0, 1)]


@pytest.mark.parametrize("budget", [1, 2, 3, 5])
def test_no_more_run_than_the_budget_has_tokens_and_each_gets_one_in_every_step(budget: int) -> None:
    queue = Queue(slots=4, budget=budget, num_blocks=4 * FULL_LENGTH)
    sequences = [waiting(name, 5, max_tokens=4) for name in "abcdef"]
    for one in sequences:
        queue.add(one)
    while queue.has_work:
        generating = {s.request_id for s in sequences if s.slot != NO_SLOT and s.num_tokens - s.num_computed == 1}
        chunks = queue.step()
        assert generating <= {chunk.sequence.request_id for chunk in chunks}
        assert queue.num_running <= budget
    assert all(len(one.output_token_ids) == 4 for one in sequences)


def test_200_waiting_over_8_slots_are_served_in_order() -> None:
    rng = random.Random(0)
    queue = Queue(slots=8, budget=32, num_blocks=40)
    sequences = [waiting(f"{i}", rng.randrange(1, 30), max_tokens=rng.randrange(1, 10)) for i in range(200)]
    for one in sequences:
        queue.add(one)
    first_token: list[str] = []
    steps = 0
    while queue.has_work:
        steps += 1
        assert steps < 200 * 40
        for chunk in queue.step():
            if chunk.samples and chunk.sequence.request_id not in first_token:
                first_token.append(chunk.sequence.request_id)
    assert all(one.finish_reason == "length" for one in sequences)
    places = {name: place for place, name in enumerate(first_token)}
    # In order of arrival, up to those that share a step.
    assert all(abs(places[one.request_id] - index) < 8 for index, one in enumerate(sequences))
    admitted = list(dict.fromkeys(queue.book.entered))
    assert admitted == [one.request_id for one in sequences]


# Shared beginnings


def alike(name: str, tail: int, length: int = 12) -> Sequence:
    return sequence([*range(length), tail], request_id=name, max_model_len=MAX_MODEL_LEN)


def test_a_known_beginning_is_not_computed_again() -> None:
    queue = Queue()
    queue.add(alike("a", 50))
    queue.step()
    queue.add(alike("b", 60))
    assert told(queue.step()) == [("a", 13, 1), ("b", 12, 1)]


def test_of_a_burst_that_begins_alike_one_computes_the_beginning() -> None:
    queue = Queue(slots=32, budget=512, num_blocks=32 * FULL_LENGTH)
    for number in range(32):
        queue.add(alike(str(number), 50 + number))
    assert told(queue.step()) == [("0", 0, 13)]
    assert [chunk[1:] for chunk in told(queue.step())] == [(13, 1)] + [(12, 1)] * 31
    assert (queue.blocks.num_queried_tokens, queue.blocks.num_hit_tokens) == (32 * 13, 31 * 12)


def test_without_prefix_caching_nobody_waits_for_another() -> None:
    queue = Queue(budget=100, caching=False)
    for number in range(3):
        queue.add(alike(str(number), 50))
    assert [chunk[1:] for chunk in told(queue.step())] == [(0, 13)] * 3


def test_who_waits_for_a_beginning_does_not_wait_for_the_whole_prompt() -> None:
    queue = Queue(budget=8)
    long = sequence(list(range(30)), request_id="long", max_model_len=MAX_MODEL_LEN)
    short = sequence([*range(8), 99], request_id="short", max_model_len=MAX_MODEL_LEN)
    queue.add(long)
    queue.add(short)
    assert told(queue.step()) == [("long", 0, 8)]
    steps = [told(queue.step()) for _ in range(3)]
    assert steps[:2] == [[("long", 8, 8)], [("long", 16, 8)]]
    assert steps[2] == [("long", 24, 6), ("short", 8, 1)]


# Preemption


def test_the_youngest_gives_way_and_comes_back_first() -> None:
    queue = Queue(num_blocks=FULL_LENGTH)
    for name in "abcd":
        queue.add(waiting(name, 9))
    ran: list[list[str]] = []
    while queue.num_preemptions == 0:
        ran.append([chunk.sequence.request_id for chunk in queue.step()])
    assert ran[-2:] == [["a", "b"], ["a"]]
    assert queue.num_waiting == 3
    queue.abort({"a"})
    assert next(chunk.sequence.request_id for chunk in queue.schedule()) == "b"


def test_a_preempted_sequence_has_no_slot_and_no_blocks_and_keeps_its_tokens() -> None:
    queue = Queue(caching=False)
    one = waiting("a", 5)
    queue.add(one)
    for _ in range(3):
        queue.step()
    queue.preempt()
    assert (one.slot, one.block_table, one.num_computed) == (NO_SLOT, [], 0)
    assert (queue.book.taken, queue.num_waiting, queue.num_running) == ({}, 1, 0)
    assert len(one.output_token_ids) == 3
    assert queue.blocks.num_free == queue.blocks.num_total
    assert told(queue.step()) == [("a", 0, 8)]
    assert len(one.output_token_ids) == 4


def test_nobody_is_admitted_in_a_step_that_preempts() -> None:
    queue = Queue(num_blocks=FULL_LENGTH)
    for name in "abc":
        queue.add(waiting(name, 9, max_tokens=30))
    while queue.has_work:
        before, entered = queue.num_preemptions, len(queue.book.entered)
        queue.step()
        assert queue.num_preemptions == before or len(queue.book.entered) == entered
    assert queue.num_preemptions > 0


# Abort


def test_aborted_requests_are_gone_wherever_they_are() -> None:
    queue = Queue(budget=8)
    running, prompt, preempted, waits = (
        waiting(name, length) for name, length in zip("abcd", (1, 30, 3, 3), strict=True)
    )
    for one in (running, preempted):
        queue.add(one)
    queue.step()
    queue.preempt()
    assert preempted.slot == NO_SLOT
    queue.abort({"c"})
    for one in (prompt, waits):
        queue.add(one)
    queue.step()
    assert 0 < prompt.num_computed < 30
    queue.abort({"b", "d", "unknown"})
    assert (queue.num_running, queue.num_waiting) == (1, 0)
    assert told(queue.step()) == [("a", 2, 1)]
    queue.abort({"a"})
    assert not queue.has_work
    assert queue.book.taken == {}
    assert queue.blocks.num_free == queue.blocks.num_total


# Any history


@settings(max_examples=200)
@given(
    st.lists(
        st.one_of(st.integers(1, MAX_MODEL_LEN - 1), st.sampled_from(["step", "step", "abort", "preempt"])),
        max_size=60,
    ),
    st.integers(1, 30),
    st.integers(FULL_LENGTH, SLOTS * FULL_LENGTH),
    st.booleans(),
    st.randoms(),
)
def test_any_history_keeps_slots_blocks_and_order(
    events: list[int | str], budget: int, num_blocks: int, caching: bool, rng: random.Random
) -> None:
    queue = Queue(budget=budget, num_blocks=num_blocks, caching=caching)
    alive: dict[str, Sequence] = {}
    for number, event in enumerate(events):
        if isinstance(event, int):
            # Two kinds of prompts, so that some begin alike.
            prompt = [rng.randrange(2)] * event
            one = sequence(prompt, request_id=str(number), max_model_len=MAX_MODEL_LEN, max_tokens=rng.randrange(1, 9))
            alive[one.request_id] = one
            queue.add(one)
        elif event == "abort" and alive:
            gone = rng.choice(list(alive))
            queue.abort({gone})
            assert (alive[gone].slot, alive[gone].block_table) == (NO_SLOT, [])
            del alive[gone]
        elif event == "preempt" and queue.num_running:
            queue.preempt()
        elif event == "step":
            check_step(queue, alive, budget)
        alive = {name: one for name, one in alive.items() if one.finish_reason is None}
        check_state(queue, alive)
    for _ in range(10_000):
        if not queue.has_work:
            break
        check_step(queue, alive, budget)
    assert all(one.finish_reason == "length" for one in alive.values())
    assert queue.book.taken == {}
    assert queue.blocks.num_free == queue.blocks.num_total
    first_entries = [int(name) for name in dict.fromkeys(queue.book.entered)]
    assert first_entries == sorted(first_entries)


def check_step(queue: Queue, alive: dict[str, Sequence], budget: int) -> None:
    before = {name: (one.num_computed, one.num_tokens) for name, one in alive.items()}
    had_work = queue.has_work
    chunks = queue.step()
    assert bool(chunks) == had_work
    assert sum(chunk.num_tokens for chunk in chunks) <= budget
    assert all(chunk.num_tokens > 0 for chunk in chunks)
    for chunk in chunks:
        computed, num_tokens = before[chunk.sequence.request_id]
        assert chunk.samples == (chunk.start + chunk.num_tokens == num_tokens)
        assert chunk.start in (computed, *range(0, num_tokens, BLOCK_SIZE))


def check_state(queue: Queue, alive: dict[str, Sequence]) -> None:
    running = {one.slot: one for one in alive.values() if one.slot != NO_SLOT}
    assert {slot: one.request_id for slot, one in running.items()} == queue.book.taken
    assert (queue.num_running, queue.num_waiting) == (len(running), len(alive) - len(running))
    assert set(running) <= set(range(SLOTS))
    # Who runs came before who waits.
    waits = [int(name) for name, one in alive.items() if one.slot == NO_SLOT]
    assert max((int(one.request_id) for one in running.values()), default=-1) < min(waits, default=10**9)
    used = {block for one in running.values() for block in one.block_table}
    assert queue.blocks.num_used == len(used)
    for one in running.values():
        assert len(one.block_table) * BLOCK_SIZE >= one.num_computed


def of_client(client: str, name: str, length: int) -> Sequence:
    made = waiting(name, length)
    made.client = client
    return made


def test_prompts_of_one_client_leave_others_their_share_of_every_step() -> None:
    queue = Queue(fair=True)
    queue.add(of_client("a", "long", 38))
    assert told(queue.step()) == [("long", 0, 20)]
    queue.add(of_client("b", "late", 30))
    assert told(queue.step()) == [("long", 20, 10), ("late", 0, 10)]
    assert told(queue.step()) == [("long", 30, 8), ("late", 10, 12)]


def test_slow_prompts_get_a_token_of_each_client_beside_sequences_that_generate() -> None:
    queue = Queue(fair=True)
    queue.add(of_client("c", "generates", 4))
    queue.step()
    queue.pace = StepPace(limit=0.2)
    queue.pace.took(60.0, 0, 20)
    queue.add(of_client("a", "long", 38))
    queue.add(of_client("b", "late", 30))
    assert told(queue.step())[1:] == [("long", 0, 1), ("late", 0, 1)]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 38)), min_size=1, max_size=12), st.integers(1, 25))
def test_shares_of_clients_starve_nobody(prompts: list[tuple[str, int]], budget: int) -> None:
    queue = Queue(fair=True, budget=budget)
    for number, (client, length) in enumerate(prompts):
        queue.add(of_client(client, str(number), length))
    while queue.has_work:
        chunks = queue.step(token=0)
        assert chunks
        assert sum(chunk.num_tokens for chunk in chunks) <= budget


def test_tokens_whose_logprobs_are_wanted_count_as_several() -> None:
    queue = Queue()
    queue.add(waiting("r", 38, prompt_logprobs=3))
    assert [(chunk.num_tokens, chunk.cost) for chunk in queue.step()] == [(10, 20)]


def test_prompts_that_take_long_get_fewer_tokens_beside_sequences_that_generate() -> None:
    queue = Queue(budget=32)
    queue.pace = StepPace(limit=0.2)
    queue.add(waiting("generates", 4, max_tokens=9))
    assert told(queue.step()) == [("generates", 0, 4)]
    queue.add(waiting("first", 36))
    assert told(queue.step())[1:] == [("first", 0, FIRST_TOKENS)]
    queue.pace.took(0.31, 1, 31)
    queue.add(waiting("second", 36))
    # 10 ms a token: 20 tokens.
    assert told(queue.step())[1:] == [("first", FIRST_TOKENS, 20)]
    assert told(queue.step())[1:] == [("first", FIRST_TOKENS + 20, 12), ("second", 0, 8)]
