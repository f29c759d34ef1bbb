"""What follows a sequence through its slot is in one list, and only what a pooled prompt needs follows one."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from paddle import Tensor
from support.sequences import request, run_to_end, sequence, tiny_engine

from fastdeploy_lp.worker.logits_mask import LogitsMask
from fastdeploy_lp.worker.model_runner import ModelRunner
from fastdeploy_lp.worker.sequence import Sequence
from fastdeploy_lp.worker.slot_followers import ChainSlots, SlotArrays, SlotFollowers


@dataclass
class Noted:
    """Notes what it is told."""

    calls: list[tuple[str, int]] = field(default_factory=list)

    def enter(self, sequence: Sequence) -> None:
        self.calls.append(("enter", sequence.slot))

    def leave(self, slot: int) -> None:
        self.calls.append(("leave", slot))


class NotingMask(LogitsMask):
    """Bans nothing."""

    def __init__(self) -> None:
        self.noted = Noted()

    def enter(self, sequence: Sequence) -> None:
        self.noted.enter(sequence)

    def leave(self, slot: int) -> None:
        self.noted.leave(slot)

    def apply(self, logits: Tensor, slots: NDArray[np.int64]) -> Tensor:
        return logits


def runner() -> ModelRunner:
    made = tiny_engine().runner
    assert isinstance(made, ModelRunner)
    return made


def test_a_pooled_prompt_is_followed_by_nothing_that_samples() -> None:
    every, sampling = Noted(), Noted()
    followers = SlotFollowers((every,), (sampling,))
    pooled = sequence([1, 2], slot=2)
    pooled.pooling = "mean"
    followers.enter(pooled)
    followers.enter(sequence([1], slot=1))
    followers.leave(1)
    followers.leave(2)
    assert every.calls == [("enter", 2), ("enter", 1), ("leave", 1), ("leave", 2)]
    assert sampling.calls == [("enter", 1), ("leave", 1), ("leave", 2)]


def test_every_part_of_the_runner_that_can_be_entered_is_in_the_list() -> None:
    made = runner()
    listed = {id(each) for each in (*made.followers.every, *made.followers.sampling)}
    parts = [part for part in vars(made).values() if hasattr(part, "enter") and hasattr(part, "leave")]
    assert len(parts) >= 6
    for part in parts:
        assert id(part) in listed or part is made.chain, part
    wrapped = {type(each) for each in (*made.followers.every, *made.followers.sampling)}
    assert {ChainSlots, SlotArrays} <= wrapped


def test_a_mask_that_replaces_another_is_the_one_that_follows() -> None:
    engine, mask = tiny_engine(), NotingMask()
    engine.runner.mask = mask  # type: ignore[attr-defined]
    run_to_end(engine, [request("r", [1, 2], max_tokens=2)])
    assert mask.noted.calls == [("enter", 0), ("leave", 0)]
