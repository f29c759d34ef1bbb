"""Turns of a client's sequences beside those of other clients, by the time that steps take."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.sequences import request, run_to_end, sequence, tiny_engine

from fastdeploy_lp.messages import SequenceStep
from fastdeploy_lp.worker.fairness import ClientTurns, StepTime

FIXED, ROW = 0.010, 0.003
SHARE = 0.5
ONE_AND_SIX = (("a", 0), *(("b", number) for number in range(6)))


class Steps:
    """Steps that take `fixed` seconds and `row` seconds a token, of clients by slot."""

    def __init__(self, clients: str, *, share: float = SHARE, fixed: float = FIXED, row: float = ROW) -> None:
        self.turns = ClientTurns(share)
        self.clients = dict(enumerate(clients))
        self.fixed, self.row = fixed, row
        for slot, client in self.clients.items():
            self.turns.enter(sequence([1], slot=slot, client=client))

    def step(self, slots: set[int] | None = None, prompts: str = "") -> list[int]:
        """The slots that have had a turn; a prompt token was computed for each of `prompts`, which are clients."""
        ready = sorted(self.clients if slots is None else slots)
        self.turns.begin(ready, [sequence([1, 2], client=client) for client in prompts])
        ran = [slot for slot in ready if not self.turns.holds(slot)]
        tokens = len(ran) + len(prompts)
        self.turns.took(len(ran), tokens, self.fixed + self.row * tokens)
        return ran


def test_a_client_with_one_stream_has_it_in_every_step_and_the_others_take_turns() -> None:
    steps = Steps("abbbbbbb")
    ran = [steps.step() for _ in range(90)][20:]
    assert all(0 in slots for slots in ran)
    # 13 ms alone, 19.5 ms at most: three tokens.
    assert Counter(len(slots) for slots in ran).most_common(1)[0][0] == 3
    assert sum(len(slots) for slots in ran) <= 3 * len(ran)
    turns = Counter(slot for slots in ran for slot in slots if slot)
    assert max(turns.values()) - min(turns.values()) <= 2


def test_rows_that_cost_nothing_wait_for_nobody() -> None:
    steps = Steps("abbbbbbb", row=0.0)
    assert [len(steps.step()) for _ in range(30)][10:] == [8] * 20


@pytest.mark.parametrize(("clients", "share"), [("aaaa", SHARE), ("aabb", 0.0)])
def test_there_is_no_limit_for_a_single_client_and_none_without_a_share(clients: str, share: float) -> None:
    steps = Steps(clients, share=share)
    assert [steps.step() for _ in range(9)] == [[0, 1, 2, 3]] * 9
    assert steps.turns.room(4) > 10**6


def test_prompts_of_others_have_the_room_that_is_left_and_a_token_each() -> None:
    steps = Steps("a")
    for prompts in ("", "b") * 20:
        steps.step(prompts=prompts)
    steps.turns.begin([0], [sequence([1, 2], client="b")])
    assert steps.turns.room(1, least=1) == 2
    assert steps.turns.room(5, least=1) == 1


def test_every_client_has_a_token_in_every_step_however_many_there_are() -> None:
    steps = Steps("abcdefgh")
    assert [steps.step() for _ in range(30)] == [list(range(8))] * 30


def test_a_slot_that_is_left_holds_nobody() -> None:
    steps = Steps("abb")
    steps.turns.took(1, 1, 1.0)
    steps.step()
    held = next(slot for slot in (1, 2) if steps.turns.holds(slot))
    steps.turns.leave(held)
    assert not steps.turns.holds(held)


@given(
    st.text("abc", min_size=1, max_size=10),
    st.lists(st.tuples(st.sets(st.integers(0, 9)), st.text("abcd", max_size=3)), max_size=30),
    st.floats(0.0, 0.02),
    st.floats(0.0, 0.02),
)
def test_whatever_comes_each_ready_client_has_a_turn(
    clients: str, events: list[tuple[set[int], str]], fixed: float, row: float
) -> None:
    steps = Steps(clients, fixed=fixed, row=row)
    for ready, prompts in events:
        slots = {slot for slot in ready if slot < len(clients)}
        ran = steps.step(slots, prompts)
        assert {clients[slot] for slot in ran} == {clients[slot] for slot in slots}


def test_the_line_is_found_from_a_few_sizes_and_one_long_step_moves_it_little() -> None:
    time = StepTime()
    for tokens in (1, 2, 3, 2) * 20:
        time.took(tokens, FIXED + ROW * tokens)
    assert time.of(8) == pytest.approx(FIXED + ROW * 8)
    assert time.tokens_in(time.of(5)) == pytest.approx(5)
    time.took(2, 60.0)
    assert time.of(2) < 1.2 * (FIXED + ROW * 2)


def test_steps_of_one_size_count_as_the_tokens_time() -> None:
    time = StepTime()
    for _ in range(9):
        time.took(2, 0.02)
    assert time.of(1) == pytest.approx(0.01)
    assert time.of(3) == pytest.approx(0.03)


def test_a_long_prompt_chunk_says_little_about_few_rows() -> None:
    time = StepTime()
    time.took(512, 0.3)
    for tokens in (1, 2, 3) * 20:
        time.took(tokens, FIXED + ROW * tokens)
    assert time.of(3) == pytest.approx(FIXED + ROW * 3, rel=0.1)
    assert time.tokens_in(1.5 * time.of(1)) < 4


class OneEach(ClientTurns):
    """A second row takes 99 seconds, so that there is time for one of each client."""

    def took(self, num_generating: int, tokens: int, seconds: float) -> None:
        super().took(num_generating, tokens, 99.0 * tokens)


def test_the_engine_s_answers_are_the_same_with_turns_and_a_stream_goes_on_in_every_step() -> None:
    asked = [request(f"{name}{number}", [5, 6, 7 + number], client=name, max_tokens=20) for name, number in ONE_AND_SIX]
    without = run_to_end(tiny_engine(), asked)
    engine = tiny_engine()
    engine.scheduler.turns = OneEach(SHARE)
    for each in asked:
        engine.add(each)
    steps: list[list[SequenceStep]] = []
    while engine.has_work:
        steps.append(engine.step().steps)
    tokens = {each.request_id: [] for each in asked}
    for each in (each for step in steps for each in step):
        tokens[each.request_id] += each.token_ids
    assert tokens == {name: ran.token_ids for name, ran in without.items()}
    of_the_stream = [number for number, step in enumerate(steps) if "a0" in {each.request_id for each in step}]
    assert of_the_stream == list(range(of_the_stream[0], of_the_stream[0] + 20))
    # Before the first step that generates, nothing is known of its time.
    beside_it = [len(step) for step in steps[of_the_stream[0] + 2 : of_the_stream[-1]]]
    assert max(beside_it) <= 2
