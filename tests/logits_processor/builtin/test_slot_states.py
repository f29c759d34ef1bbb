from __future__ import annotations

from typing import Any

from support.churned import SLOTS, Slots

from fastdeploy_lp.logits_processor import ProcessorArgs
from fastdeploy_lp.logits_processor.builtin.slot_states import SlotRequest, SlotStates


class Recorded:
    def __init__(self, request: SlotRequest) -> None:
        self.request = request


def states_of(slots: Slots, states: SlotStates[Recorded], active: Any = None) -> dict[int, Recorded]:
    slots.processor = type("Follower", (), {"update_state": lambda _, view: found.extend(states.follow(view))})()  # type: ignore[assignment]
    found: list[tuple[int, Recorded]] = []
    slots.update(active)
    return dict(found)


def test_states_follow_their_requests_and_are_made_once() -> None:
    slots, states = Slots(lambda _: None), SlotStates(Recorded)  # type: ignore[arg-type, return-value]
    slots.enter(1, [5], {"a": 1})
    slots.enter(3, [6], {})
    first = states_of(slots, states)
    assert set(first) == {0}
    assert first[0].request.prompt == [5]
    slots.enter(0, [7], {"a": 1})
    second = states_of(slots, states)
    assert second[1] is first[0]
    assert states_of(slots, states, active=[3, 1]) == {0: first[0]}
    made = slots.leave(1)
    assert states_of(slots, states) == {0: second[0]}
    slots.take(2, made)
    assert states_of(slots, states)[1] is not first[0]


def test_other_arguments_make_another_state() -> None:
    slots, states = Slots(lambda _: None), SlotStates(Recorded)  # type: ignore[arg-type, return-value]
    slots.enter(0, [5], {"a": 1})
    (first,) = states_of(slots, states).values()
    slots.view.set_args(0, ProcessorArgs({"a": 2}))
    (second,) = states_of(slots, states).values()
    assert (first.request.args, second.request.args) == ({"a": 1}, {"a": 2})


def test_a_remembered_state_comes_back_with_its_request_alone() -> None:
    slots, states = Slots(lambda _: None), SlotStates(Recorded, remember=2)  # type: ignore[arg-type, return-value]
    slots.enter(0, [5], {"a": 1})
    (first,) = states_of(slots, states).values()
    preempted = slots.leave(0)
    slots.enter(0, [5], {"a": 1})
    (other,) = states_of(slots, states).values()
    assert other is not first
    slots.take(2, preempted)
    assert states_of(slots, states) == {0: other, 1: first}


def test_no_more_is_remembered_than_was_asked_for() -> None:
    slots, states = Slots(lambda _: None), SlotStates(Recorded, remember=2)  # type: ignore[arg-type, return-value]
    left = []
    for _ in range(5):
        for slot in range(SLOTS):
            slots.enter(slot, [5], {"a": 1})
        states_of(slots, states)
        left += [slots.leave(slot) for slot in range(SLOTS)]
        states_of(slots, states)
    assert len(states._left) == 2
    assert states._by_slot == {}
