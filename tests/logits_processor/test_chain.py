from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import paddle
import pytest
from paddle import Tensor
from support.processors import Doubles, SetsToFive
from support.sequences import sequence
from support.tiny import tiny_fd_config

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.logits_processor import LogitsProcessor, LogitsProcessorChain
from fastdeploy_lp.worker.share_inputs import ShareInputs

CONFIG = tiny_fd_config()


class Diary(LogitsProcessor):
    """Writes down what happens to it."""

    invariant = False

    def __init__(self, fd_config: FDConfig) -> None:
        self.events: list[tuple[str, str]] = []

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
    processors = [cls(CONFIG) for cls in classes]
    for processor in processors:
        processor.events = processors[0].events
    return LogitsProcessorChain(processors), processors[0].events


def active(*args: dict[str, Any]) -> ShareInputs:
    """One active slot for each dict of arguments."""
    share_inputs = ShareInputs(max(len(args), 1), 8)
    for slot, given in enumerate(args):
        share_inputs.assign(sequence([1], slot=slot, logits_processors_args=given))
    share_inputs.set_active(np.arange(len(args)))
    return share_inputs


@pytest.mark.parametrize(
    ("order", "expected"),
    [((SetsToFive, Doubles), 10.0), ((Doubles, SetsToFive), 5.0)],
)
def test_declaration_order_is_execution_order(order: tuple[type[LogitsProcessor], ...], expected: float) -> None:
    chain = LogitsProcessorChain([cls(CONFIG) for cls in order])
    chain.update_state(active({"order_token": 2}, {}))
    result = chain.apply(paddle.full([2, 4], 3.0), all_greedy=True).numpy()
    np.testing.assert_array_equal(result, [[3.0, 3.0, expected, 3.0], [3.0, 3.0, 3.0, 3.0]])


def test_every_processor_sees_the_slots_before_any_sees_logits() -> None:
    chain, events = diaries(Second, Invariant, Diary)
    for _ in range(2):
        chain.update_state(active({}))
        chain.apply(paddle.zeros([1, 4]), all_greedy=False)
    names = ["Second", "Invariant", "Diary"]
    assert events == 2 * [*((name, "update_state") for name in names), *((name, "apply") for name in names)]


def test_argmax_invariant_processors_are_skipped_only_when_every_row_is_greedy() -> None:
    chain, events = diaries(Diary, Invariant, Second)
    chain.apply(paddle.zeros([1, 4]), all_greedy=True)
    assert [name for name, _ in events] == ["Diary", "Second"]
    events.clear()
    chain.apply(paddle.zeros([1, 4]), all_greedy=False)
    assert [name for name, _ in events] == ["Diary", "Invariant", "Second"]


def test_a_skipped_processor_still_sees_every_step() -> None:
    chain, events = diaries(Invariant)
    chain.update_state(active({}))
    chain.apply(paddle.zeros([1, 4]), all_greedy=True)
    assert events == [("Invariant", "update_state")]


def test_processors_are_not_argmax_invariant_unless_they_say_so() -> None:
    assert not SetsToFive(CONFIG).is_argmax_invariant()


def test_a_tensor_that_a_processor_returns_is_what_the_next_one_gets() -> None:
    chain = LogitsProcessorChain([ReturnsAnother(CONFIG), Doubles(CONFIG)])
    chain.update_state(active({"order_token": 0}))
    logits = paddle.zeros([1, 3])
    result = chain.apply(logits, all_greedy=False)
    np.testing.assert_array_equal(result.numpy(), [[2.0, 1.0, 1.0]])
    np.testing.assert_array_equal(logits.numpy(), np.zeros([1, 3]))


def test_an_empty_chain_gives_the_same_tensor_back() -> None:
    chain = LogitsProcessorChain([])
    logits = paddle.zeros([1, 3])
    chain.update_state(active({}))
    assert chain.apply(logits, all_greedy=False) is logits
