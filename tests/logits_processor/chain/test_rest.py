"""A processor at rest: the chain leaves out the updates that would do nothing, and no other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import paddle
import pytest
from paddle import Tensor
from pydantic import BaseModel
from support.sequences import chain_of, sequence
from support.tiny import tiny_fd_config

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.logits_processor import LogitsProcessor, LogitsProcessorChain
from fastdeploy_lp.logits_processor.builtin.bans import MinTokensLogitsProcessor
from fastdeploy_lp.logits_processor.share_inputs import ShareInputs
from fastdeploy_lp.logits_processor.testing import ProcessorHarness
from fastdeploy_lp.request.sampling_params import SamplingParams

CONFIG = tiny_fd_config()
STOP = 2


class Rests(LogitsProcessor):
    """Counts its updates, and adds their number to the first token's logit."""

    class Params(BaseModel):
        use: bool

    steps_at_rest = 3
    only_with_args = True

    def __init__(self, fd_config: FDConfig) -> None:
        self.updates = 0

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        self.updates += 1

    def apply(self, logits: Tensor) -> Tensor:
        logits[:, 0] = float(self.updates)
        return logits


class Follows(Rests):
    """Has an update of its own, of which the class above knows nothing."""

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        self.updates += 1


class RestsAndActs(Rests):
    """Sends a value with each update."""

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        super().update_state(share_inputs)
        for slot in np.flatnonzero(~share_inputs["stop_flags"][:, 0]).tolist():
            self.actions.emit(slot, self.updates)


class ReadsATensor(Rests):
    """Keeps the slots, and adds the last token of the first one to the logits."""

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        self.share_inputs = share_inputs
        self.steps_at_rest = 3

    def apply(self, logits: Tensor) -> Tensor:
        logits[:, 0] = float(self.share_inputs["next_tokens"][0, 0])
        return logits


class AfterTheFilters(Rests):
    stage = "filtered"


class RestsForAWord(Rests):
    steps_at_rest = "three"  # type: ignore[assignment]


class Slots:
    """A chain and its slots, one step at a time."""

    def __init__(self, processor: type[LogitsProcessor]) -> None:
        self.share_inputs = ShareInputs(CONFIG.scheduler_config.max_num_seqs, 8)
        self.chain: LogitsProcessorChain = chain_of([processor], CONFIG)
        self.values: list[Any] = []

    def enter(self, slot: int, **args: Any) -> None:
        entering = sequence([1], slot=slot, logits_processors_args=args, temperature=1.0)
        self.share_inputs.assign(entering)
        self.chain.enter(slot, entering.selection)

    def leave(self, slot: int) -> None:
        self.share_inputs.clear(slot)
        self.chain.leave(slot)

    def step(self, *active: int) -> float:
        """The first token's logit of the first row."""
        self.share_inputs.set_active(np.array(active))
        self.chain.update_state(self.share_inputs)
        logits = paddle.zeros([len(active), 4])
        result = self.chain.apply(logits, all_greedy=False, recompute=logits.clone)
        self.values = [value for actions in self.chain.take_actions(()).values() for _, value in actions.values]
        return float(result[0, 0])


def test_it_is_updated_again_after_its_steps_at_rest() -> None:
    slots = Slots(Rests)
    slots.enter(0, use=True)
    assert [slots.step(0) for _ in range(9)] == [1, 1, 1, 1, 2, 2, 2, 2, 3]


def test_it_is_updated_when_a_request_of_its_own_comes_or_goes() -> None:
    slots = Slots(Rests)
    slots.enter(0, use=True)
    assert [slots.step(0), slots.step(0)] == [1, 1]
    slots.enter(1, use=True)
    assert [slots.step(0, 1), slots.step(0, 1)] == [2, 2]
    slots.leave(1)
    assert [slots.step(0), slots.step(0)] == [3, 3]


def test_it_is_updated_when_the_rows_of_others_change() -> None:
    slots = Slots(Rests)
    slots.enter(0, use=True)
    slots.enter(1)
    assert [slots.step(0, 1), slots.step(0, 1), slots.step(0), slots.step(0), slots.step(0, 1)] == [1, 1, 2, 2, 3]


def test_it_is_updated_for_another_request_in_the_same_slot() -> None:
    slots = Slots(Rests)
    slots.enter(0, use=True)
    assert slots.step(0) == 1
    slots.leave(0)
    slots.enter(0, use=True)
    assert [slots.step(0), slots.step(0)] == [2, 2]


def test_a_new_instance_is_updated_at_once() -> None:
    slots = Slots(Rests)
    slots.enter(0, use=True)
    slots.step(0)
    slots.chain.reset("Rests")
    assert slots.step(0) == 1


def test_a_class_with_an_update_of_its_own_follows_every_step() -> None:
    slots = Slots(Follows)
    slots.enter(0, use=True)
    assert [slots.step(0) for _ in range(3)] == [1, 2, 3]


def test_the_actions_of_an_update_are_those_of_one_step() -> None:
    class Speaks(RestsAndActs):
        steps_at_rest = 1

    slots = Slots(Speaks)
    slots.enter(0, use=True)
    values = []
    for _ in range(4):
        slots.step(0)
        values.append(slots.values)
    assert values == [[b"1"], [], [b"2"], []]


def test_at_rest_it_reads_the_tensors_of_the_step() -> None:
    slots = Slots(ReadsATensor)
    slots.enter(0, use=True)
    seen = []
    for token in (5, 6, 7):
        slots.share_inputs.append_tokens(np.array([0]), np.array([token]))
        seen.append(slots.step(0))
    assert seen == [5, 6, 7]


def test_after_the_filters_every_step_is_followed() -> None:
    """There the rows also depend on the temperatures."""
    slots = Slots(AfterTheFilters)
    slots.enter(0, use=True)
    for _ in range(3):
        slots.step(0)
    (entry,) = slots.chain._main.entries
    assert entry.processor.updates == 3  # type: ignore[attr-defined]


def test_steps_that_are_no_number_are_a_fault() -> None:
    slots = Slots(RestsForAWord)
    slots.enter(0, use=True)
    slots.step(0)
    assert "TypeError" in slots.chain.failures[0].message


@pytest.mark.parametrize("minimum", [1, 2, 5])
def test_min_tokens_holds_to_the_token(minimum: int) -> None:
    harness = ProcessorHarness(MinTokensLogitsProcessor, fd_config=CONFIG)
    for name, least in (("a", minimum), ("b", 3)):
        harness.enter(name, {"min_tokens": least}, params=SamplingParams(stop_token_ids=[STOP]))
    banned = []
    for _ in range(8):
        rows = harness.step()
        banned.append(tuple(bool(np.isneginf(rows[name][STOP])) for name in "ab"))
    assert banned == [(done < minimum, done < 3) for done in range(8)]
