from __future__ import annotations

from typing import Any

from support.churned import SLOTS, Slots

from fastdeploy_lp.logits_processor import ProcessorArgs
from fastdeploy_lp.logits_processor.sequence_state.slot_states import SlotRequest, SlotStates


class Recorded:
    def __init__(self, request: SlotRequest) -> None:
        self.request = request


def states_of(slots: Slots, states: SlotStates[Recorded], active: Any = None) -> dict[int, Recorded]:
    slots.processor = type("Follower", (), {"update_state": lambda _, view: states.follow(view)})()  # type: ignore[assignment]
    slots.update(active)
    return dict(states)


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
    assert states._held == {}
