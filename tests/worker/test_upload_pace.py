"""Turns of sequences with uploaded processors, by the time that the processors have taken."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.sequences import sequence

from fastdeploy_lp.logits_processor import ProcessorStats, Selection
from fastdeploy_lp.worker.fairness import UploadPace

SHARE = 0.05
STEP = 0.010
PLAIN = 99


class Steps:
    """Steps of a plain sequence beside sequences with uploads, whose turns take given seconds."""

    def __init__(self, *, beside_others: bool = True) -> None:
        self.pace = UploadPace(SHARE)
        self.stats: dict[str, ProcessorStats] = {}
        self.costs: dict[int, tuple[str, float]] = {}
        self.beside_others = beside_others

    def enter(self, slot: int, cost: float, name: str = "mine") -> None:
        selection = Selection(named={name: {}}, order=(name,), brought={name: f"{name}=/{name}.wasm"})
        self.pace.enter(sequence([1], slot=slot, selection=selection))
        self.stats.setdefault(name, ProcessorStats(name))
        self.costs[slot] = (name, cost)

    def leave(self, slot: int) -> None:
        self.pace.leave(slot)
        del self.costs[slot]

    def step(self, ending: int | None = None) -> tuple[list[int], float]:
        """The slots that have had a turn, and the seconds of their processors; `ending` leaves its slot in the step."""
        self.pace.begin([*([PLAIN] if self.beside_others else []), *self.costs])
        turns = [slot for slot in self.costs if not self.pace.holds(slot)]
        for slot in turns:
            name, cost = self.costs[slot]
            self.stats[name].seconds += cost
        spent = sum(self.costs[slot][1] for slot in turns)
        if ending is not None:
            self.leave(ending)
        self.pace.took(STEP + spent, self.stats)
        return turns, spent


def test_those_that_take_little_have_a_turn_in_every_step() -> None:
    steps = Steps()
    for slot in range(8):
        steps.enter(slot, STEP * SHARE / 10)
    ran = [steps.step()[0] for _ in range(20)]
    assert ran[0] == [0]
    assert all(turns == list(range(8)) for turns in ran[3:])


def test_without_others_all_have_a_turn_in_every_step() -> None:
    steps = Steps(beside_others=False)
    for slot in range(4):
        steps.enter(slot, 1.0)
    assert [steps.step()[0] for _ in range(3)] == [[0, 1, 2, 3]] * 3


def test_turns_without_others_are_free() -> None:
    steps = Steps(beside_others=False)
    steps.enter(0, STEP)
    for _ in range(100):
        steps.step()
    steps.beside_others = True
    assert sum(len(steps.step()[0]) for _ in range(50)) == 3


def test_a_sequence_without_uploads_is_never_held() -> None:
    steps = Steps()
    steps.enter(0, 1.0)
    steps.step()
    steps.pace.begin([PLAIN, 0])
    assert steps.pace.holds(0)
    assert not steps.pace.holds(PLAIN)


def test_slow_ones_have_their_turns_one_after_another() -> None:
    steps = Steps()
    for slot in range(3):
        steps.enter(slot, STEP / 2)
    ran = [slot for _ in range(120) for slot in steps.step()[0]]
    assert len(ran) >= 9
    assert ran[:9] == [0, 1, 2] * 3


@given(
    st.lists(st.floats(0.0, 0.05), min_size=1, max_size=6),
    st.lists(st.sampled_from(["step", "end", "begin"]), min_size=100, max_size=300),
)
def test_on_average_no_more_than_the_share_is_added(costs: list[float], events: list[str]) -> None:
    """Also by sequences that end in their first turn and are followed by others with new uploads."""
    steps = Steps()
    spent, counted, largest, slot = 0.0, 0, max(costs), 0
    for number, cost in enumerate(costs):
        steps.enter(number, cost, f"upload{number}")
    for number, event in enumerate(events):
        if event == "begin" and len(steps.costs) < 8:
            slot = next(each for each in range(8) if each not in steps.costs)
            steps.enter(slot, costs[number % len(costs)], f"later{number}")
        turns, seconds = steps.step(next(iter(steps.costs)) if event == "end" and steps.costs else None)
        assert seconds <= 2 * SHARE * STEP + largest + 1e-9, turns
        spent, counted = spent + seconds, counted + 1
    assert spent <= SHARE * STEP * counted + largest + 1e-9


def test_one_that_ends_in_its_turn_is_counted() -> None:
    steps = Steps()
    steps.enter(0, STEP)
    steps.step(ending=0)
    held = Counter[bool]()
    for number in range(15):
        steps.enter(0, STEP, f"new{number}")
        held[not steps.step(ending=0)[0]] += 1
    assert held == {True: 15}


def test_an_upload_that_was_forgotten_and_comes_again_counts_anew() -> None:
    steps = Steps()
    steps.enter(0, STEP * SHARE)
    for _ in range(50):
        steps.step()
    steps.stats["mine"] = ProcessorStats("mine")
    assert sum(len(steps.step()[0]) for _ in range(20)) >= 10


@pytest.mark.parametrize("known", [True, False])
def test_an_upload_that_is_gone_has_taken_no_time(known: bool) -> None:
    steps = Steps()
    steps.enter(0, 0.0)
    if known:
        steps.step()
    del steps.stats["mine"]
    steps.pace.begin([PLAIN, 0])
    assert not steps.pace.holds(0)
    steps.pace.took(STEP, steps.stats)
    steps.pace.begin([PLAIN, 0])
    assert not steps.pace.holds(0)
