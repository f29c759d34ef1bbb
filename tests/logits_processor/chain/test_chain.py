from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import paddle
import pytest
from paddle import Tensor
from support.processors import Doubles, SetsToFive
from support.sequences import chain_of, sequence
from support.tiny import tiny_fd_config

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.logits_processor import LogitsProcessor, LogitsProcessorChain, Selection
from fastdeploy_lp.logits_processor.share_inputs import ShareInputs

CONFIG = tiny_fd_config()


class Diary(LogitsProcessor):
    """Writes down what happens to it."""

    invariant = False
    events: ClassVar[list[tuple[str, str]]] = []

    def __init__(self, fd_config: FDConfig) -> None: ...

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        self.events.append((type(self).__name__, "update_state"))

    def apply(self, logits: Tensor) -> Tensor:
        self.events.append((type(self).__name__, "apply"))
        return logits

    def is_argmax_invariant(self) -> bool:
        return self.invariant


class Second(Diary): ...


class Invariant(Diary):
    invariant = True


class ReturnsAnother(Diary):
    """Leaves the tensor it was given alone."""

    def apply(self, logits: Tensor) -> Tensor:
        return logits + 1.0


def diaries(*classes: type[Diary]) -> tuple[LogitsProcessorChain, list[tuple[str, str]]]:
    """A chain whose processors write into one common diary."""
    Diary.events.clear()
    return chain_of(classes, CONFIG), Diary.events


def step(chain: LogitsProcessorChain, logits: Tensor, *args: dict[str, Any], all_greedy: bool = False) -> Tensor:
    """One step with a request in each of the first slots, which they leave again."""
    share_inputs = ShareInputs(CONFIG.scheduler_config.max_num_seqs, 8)
    for slot, given in enumerate(args):
        entering = sequence([1], slot=slot, logits_processors_args=given)
        share_inputs.assign(entering)
        chain.enter(slot, entering.selection)
    share_inputs.set_active(np.arange(len(args)))
    chain.update_state(share_inputs)
    untouched = logits.clone()
    result = chain.apply(logits, all_greedy=all_greedy, recompute=untouched.clone)
    for slot in range(len(args)):
        chain.leave(slot)
    assert chain.failures == {}
    return result


@pytest.mark.parametrize(
    ("order", "expected"),
    [((SetsToFive, Doubles), 10.0), ((Doubles, SetsToFive), 5.0)],
)
def test_declaration_order_is_execution_order(order: tuple[type[LogitsProcessor], ...], expected: float) -> None:
    chain = chain_of(order, CONFIG)
    result = step(chain, paddle.full([2, 4], 3.0), {"order_token": 2}, {}, all_greedy=True).numpy()
    np.testing.assert_array_equal(result, [[3.0, 3.0, expected, 3.0], [3.0, 3.0, 3.0, 3.0]])


def test_every_processor_sees_the_slots_before_any_sees_logits() -> None:
    chain, events = diaries(Second, Invariant, Diary)
    for _ in range(2):
        step(chain, paddle.zeros([1, 4]), {})
    names = ["Second", "Invariant", "Diary"]
    assert events == 2 * [*((name, "update_state") for name in names), *((name, "apply") for name in names)]


def test_argmax_invariant_processors_are_skipped_only_when_every_row_is_greedy() -> None:
    chain, events = diaries(Diary, Second, Invariant)
    step(chain, paddle.zeros([1, 4]), {}, all_greedy=True)
    assert [name for name, what in events if what == "apply"] == ["Diary", "Second"]
    events.clear()
    step(chain, paddle.zeros([1, 4]), {}, all_greedy=False)
    assert [name for name, what in events if what == "apply"] == ["Diary", "Second", "Invariant"]
    assert {name: stats.skipped_greedy for name, stats in chain.stats.items()} == {
        "Diary": 0,
        "Second": 0,
        "Invariant": 1,
    }
    assert chain.argmax_invariant == {"Diary": False, "Second": False, "Invariant": True}


def test_an_argmax_invariant_processor_in_front_of_another_is_never_skipped() -> None:
    """What the other makes of its logits may be another token, as it is beside a row that is drawn."""
    chain, events = diaries(Invariant, Second)
    step(chain, paddle.zeros([1, 4]), {}, all_greedy=True)
    assert [name for name, what in events if what == "apply"] == ["Invariant", "Second"]


def test_a_skipped_processor_still_sees_every_step() -> None:
    chain, events = diaries(Invariant)
    step(chain, paddle.zeros([1, 4]), {}, all_greedy=True)
    assert events == [("Invariant", "update_state")]


def test_processors_are_not_argmax_invariant_unless_they_say_so() -> None:
    assert not SetsToFive(CONFIG).is_argmax_invariant()


def test_a_tensor_that_a_processor_returns_is_what_the_next_one_gets() -> None:
    chain = chain_of([ReturnsAnother, Doubles], CONFIG)
    logits = paddle.zeros([1, 3])
    result = step(chain, logits, {"order_token": 0})
    np.testing.assert_array_equal(result.numpy(), [[2.0, 1.0, 1.0]])
    np.testing.assert_array_equal(logits.numpy(), np.zeros([1, 3]))


def test_an_empty_chain_gives_the_same_tensor_back() -> None:
    chain = chain_of([], CONFIG)
    logits = paddle.zeros([1, 3])
    assert step(chain, logits, {}) is logits


class BuiltOnce(Diary):
    """Its first instance serves the declared order; no order of a request gets one."""

    built: ClassVar[list[bool]] = []

    def __init__(self, fd_config: FDConfig) -> None:
        super().__init__(fd_config)
        if self.built:
            raise ValueError("no second instance")
        self.built.append(True)


def test_a_slot_forgets_the_failure_of_the_request_before() -> None:
    BuiltOnce.built.clear()
    chain, _ = diaries(BuiltOnce, Second)
    share_inputs = ShareInputs(CONFIG.scheduler_config.max_num_seqs, 8)
    share_inputs.assign(sequence([1], slot=0))
    share_inputs.set_active(np.array([0]))
    chain.enter(0, Selection(named={"Second": {}, "BuiltOnce": {}}, order=("Second", "BuiltOnce")))
    chain.update_state(share_inputs)
    assert "no second instance" in chain.failures[0].message
    chain.leave(0)
    chain.enter(0, Selection(named={}))
    chain.update_state(share_inputs)
    assert chain.failures == {}
