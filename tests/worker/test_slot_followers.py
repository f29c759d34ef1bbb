"""What follows a sequence through its slot is in one list, and only what a sequence needs follows it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from paddle import Tensor
from support.sequences import request, run_to_end, sequence, tiny_engine

from fastdeploy_lp.worker.block_manager import BlockTables
from fastdeploy_lp.worker.logits_mask import LogitsMask
from fastdeploy_lp.worker.model_runner import ModelRunner
from fastdeploy_lp.worker.sampler import Sampler
from fastdeploy_lp.worker.sequence import Sequence
from fastdeploy_lp.worker.slot_followers import ChainSlots, SlotArrays, SlotFollower, SlotFollowers


@dataclass(eq=False)
class Noted:
    """Notes what it is told."""

    calls: list[tuple[str, int]] = field(default_factory=list)

    def enter(self, sequence: Sequence) -> None:
        self.calls.append(("enter", sequence.slot))

    def leave(self, slot: int) -> None:
        self.calls.append(("leave", slot))

    def needs_each_token(self, slot: int) -> bool:
        return True


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


def test_only_followers_that_entered_with_a_sequence_are_called_for_it() -> None:
    every, sampling = Noted(), Noted()
    followers = SlotFollowers()
    followers.enter(sequence([1, 2], slot=2), [every], [])
    followers.enter(sequence([1], slot=1), [every], [sampling])
    assert followers.follows_any(sampling)
    assert (followers.follows(sampling, 1), followers.follows(sampling, 2)) == (True, False)
    assert (followers.needs_each_token(1), followers.needs_each_token(2)) == (True, False)
    for slot in (1, 2, 2, 3):
        followers.leave(slot)
    assert not followers.follows_any(sampling)
    assert not followers.follows_any(every)
    assert every.calls == [("enter", 2), ("enter", 1), ("leave", 1), ("leave", 2)]
    assert sampling.calls == [("enter", 1), ("leave", 1)]


def followers_of(made: ModelRunner, entering: Sequence) -> list[SlotFollower]:
    return [*made.followers_of(entering), *made.sampling_followers_of(entering)]


def test_a_pooled_prompt_is_followed_by_nothing_that_samples() -> None:
    made, pooled = runner(), sequence([1, 2], slot=2)
    pooled.pooling = "mean"
    assert made.sampling_followers_of(pooled) == []
    assert made._pooling in made.followers_of(pooled)


def test_a_sequence_without_options_is_followed_by_slot_arrays_block_tables_chain_and_sampler_alone() -> None:
    made = runner()
    found = followers_of(made, sequence([1], slot=1))
    assert {type(each) for each in found} == {SlotArrays, BlockTables, ChainSlots, Sampler}


def test_every_part_of_the_runner_that_can_be_entered_is_in_the_list() -> None:
    made = runner()
    pooled = sequence([1, 2], slot=2)
    pooled.pooling = "mean"
    options = sequence([1], slot=1, prompt_logprobs=1, logits_processors_trace=True)
    options.grammar = "start: /a/"
    listed = {id(each) for entering in (pooled, options) for each in followers_of(made, entering)}
    parts = [
        part
        for name, part in vars(made).items()
        if name != "_followers" and hasattr(part, "enter") and hasattr(part, "leave")
    ]
    assert len(parts) >= 8
    for part in parts:
        assert id(part) in listed or part is made.chain, part


def test_a_mask_that_replaces_another_is_the_one_that_follows() -> None:
    engine, mask = tiny_engine(), NotingMask()
    engine.runner.mask = mask  # type: ignore[attr-defined]
    run_to_end(engine, [request("r", [1, 2], max_tokens=2)])
    assert mask.noted.calls == [("enter", 0), ("leave", 0)]
