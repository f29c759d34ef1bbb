from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
from support.sequences import sequence

from fastdeploy_lp.logits_processor import ProcessorArgs
from fastdeploy_lp.logits_processor.sequence_state.slot_states import SlotRequest, SlotStates
from fastdeploy_lp.logits_processor.share_inputs import ProcessorView, ShareInputs

SLOTS = 4


class State:
    """Something that is made once for a request."""

    def __init__(self, request: SlotRequest) -> None:
        self.request = request


def build(request: SlotRequest) -> State | None:
    return State(request) if request.args.get("used") else None


class Followed:
    """Slots as a chain shows them, and what follows them."""

    def __init__(self) -> None:
        self.share_inputs, self.view = ShareInputs(SLOTS, 16), ProcessorView(SLOTS)
        self.states: SlotStates[State] = SlotStates(build)

    def enter(self, slot: int, args: dict[str, Any], output: list[int] | None = None) -> None:
        self.share_inputs.assign(sequence([1, 2], slot=slot, output=output or ()))
        self.view.set_args(slot, ProcessorArgs(args))
        self.view.using.add(slot)

    def leave(self, slot: int) -> None:
        self.share_inputs.clear(slot)
        self.view.set_args(slot, ProcessorArgs())
        self.view.using.discard(slot)

    def follow(self, *active: int) -> bool:
        self.share_inputs.set_active(np.array(active, np.int64))
        self.view.bind(self.share_inputs, self.share_inputs["stop_flags"])
        return self.states.follow(self.view)


def test_rows_are_those_of_active_slots_that_use_the_processor() -> None:
    followed = Followed()
    followed.enter(0, {})
    followed.enter(1, {"used": True})
    followed.enter(3, {"used": True}, output=[7])
    assert followed.follow(0, 1, 3)
    assert followed.states.slots.tolist() == [1, 3]
    assert followed.states.rows.tolist() == [1, 2]
    assert [state.request.output for state in followed.states.states] == [[], [7]]
    assert followed.follow(0, 3)
    assert followed.states.rows.tolist() == [1]


def test_a_batch_that_stays_as_it_is_is_not_read_again() -> None:
    followed = Followed()
    followed.enter(1, {"used": True})
    assert followed.follow(1)
    assert not followed.follow(1)
    followed.enter(0, {})
    assert followed.follow(1)


def test_a_request_keeps_its_state_while_others_come_and_go() -> None:
    followed = Followed()
    followed.enter(1, {"used": True})
    followed.follow(1)
    (state,) = followed.states.states
    followed.enter(0, {"used": True})
    followed.follow(0, 1)
    assert followed.states.states[1] is state
    followed.leave(0)
    followed.follow(1)
    assert followed.states.states == [state]


def test_a_request_that_comes_back_to_its_slot_gets_a_state_of_its_own() -> None:
    followed = Followed()
    followed.enter(1, {"used": True}, output=[5])
    followed.follow(1)
    (before,) = followed.states.states
    followed.leave(1)
    followed.enter(1, {"used": True}, output=[5])
    assert followed.follow(1)
    assert followed.states.states[0] is not before


def test_nothing_is_kept_of_requests_that_have_left() -> None:
    followed = Followed()
    followed.enter(1, {"used": True})
    followed.follow(1)
    gone = weakref.ref(followed.states.states[0])
    followed.leave(1)
    assert followed.follow()
    gc.collect()
    assert gone() is None
