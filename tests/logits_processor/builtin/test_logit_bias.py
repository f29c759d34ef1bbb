from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sequences import sequence
from support.tiny import tiny_fd_config

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.logits_processor import ProcessorArgs
from fastdeploy_lp.logits_processor.builtin.logit_bias import LogitBiasLogitsProcessor
from fastdeploy_lp.logits_processor.share_inputs import ProcessorView, ShareInputs

VOCAB_SIZE = 10
SLOTS = 16
MAX_MODEL_LEN = 8


def small_config() -> FDConfig:
    config = tiny_fd_config(max_num_seqs=SLOTS, max_model_len=MAX_MODEL_LEN)
    return dataclasses.replace(config, model_config=dataclasses.replace(config.model_config, vocab_size=VOCAB_SIZE))


class WatchedArgs(list[ProcessorArgs]):
    """Remembers which slots' arguments are read."""

    def __init__(self, args: Iterable[ProcessorArgs]) -> None:
        super().__init__(args)
        self.read: set[int] = set()

    def __getitem__(self, slot: Any) -> Any:
        self.read.add(slot)
        return super().__getitem__(slot)


class Slots:
    """A processor and the slots it reads, filled and emptied as the worker does it.

    With `in_chain` False the processor reads bare slot arrays, as code that drives it without a chain shows them.
    """

    def __init__(self, *, in_chain: bool = True) -> None:
        self.processor = LogitBiasLogitsProcessor(small_config())
        self.share_inputs = ShareInputs(SLOTS, MAX_MODEL_LEN)
        self.view = ProcessorView(SLOTS)
        self.watched = WatchedArgs(self.view.args)
        self.view.args = self.view._own["logits_processors_args"] = self.watched
        self.in_chain = in_chain
        self.active: list[int] = []

    def fill(self, slot: int, args: dict[str, Any], *, stopped: bool = False) -> None:
        self.share_inputs.assign(sequence([1], slot=slot, max_model_len=MAX_MODEL_LEN, logits_processors_args=args))
        self.view.set_args(slot, ProcessorArgs(args))
        if not stopped:
            self.active = sorted({*self.active, slot})

    def empty(self, slot: int) -> None:
        self.share_inputs.clear(slot)
        self.view.set_args(slot, ProcessorArgs())
        self.active.remove(slot)

    def update(self) -> set[int]:
        """Gives the slots whose arguments the processor read."""
        self.watched.read = set()
        self.share_inputs.set_active(np.array(self.active, np.int64))
        self.view.bind(self.share_inputs, self.share_inputs["stop_flags"])
        self.processor.update_state(self.view if self.in_chain else self.share_inputs)
        return self.watched.read

    def apply(self, logits: np.ndarray) -> np.ndarray:
        return self.processor.apply(paddle.to_tensor(logits)).numpy()

    def tensors(self) -> list[int]:
        """The identity of every tensor that the processor keeps."""
        found: list[int] = []

        def collect(value: object) -> None:
            if isinstance(value, paddle.Tensor):
                found.append(id(value))
            elif isinstance(value, (list, tuple)):
                for part in value:
                    collect(part)
            elif type(value).__module__.startswith("fastdeploy_lp"):
                collect(list(vars(value).values()))

        collect(self.processor)
        return found


@pytest.fixture(params=[True, False], ids=["in a chain", "on bare slots"])
def slots(request: pytest.FixtureRequest) -> Slots:
    return Slots(in_chain=request.param)


def random_logits(rows: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, VOCAB_SIZE), dtype=np.float32)


def biased(logits: np.ndarray, biases: list[dict[int, float] | None]) -> np.ndarray:
    expected = logits.copy()
    for row, bias in enumerate(biases):
        for token, value in (bias or {}).items():
            expected[row, token] += np.float32(value)
    return expected


def assert_same_bits(actual: np.ndarray, expected: np.ndarray) -> None:
    assert actual.dtype == expected.dtype == np.float32
    np.testing.assert_array_equal(actual.view(np.uint32), expected.view(np.uint32))


def test_requests_come_and_go_and_every_row_gets_its_own_bias(slots: Slots) -> None:
    slots.update()
    assert slots.apply(random_logits(0)).shape == (0, VOCAB_SIZE)

    first = {3: 5.0}
    slots.fill(0, {"logit_bias": first})
    slots.update()
    logits = random_logits(1)
    assert_same_bits(slots.apply(logits), biased(logits, [first]))

    second = {1: 1.5, 4: -2.5, 9: 100.0}
    slots.fill(1, {"logit_bias": second})
    slots.update()
    logits = random_logits(2)
    assert_same_bits(slots.apply(logits), biased(logits, [first, second]))

    slots.empty(0)
    slots.update()
    logits = random_logits(1)
    assert_same_bits(slots.apply(logits), biased(logits, [second]))

    slots.fill(0, {"logit_bias": None})
    slots.update()
    logits = random_logits(2)
    assert_same_bits(slots.apply(logits), biased(logits, [None, second]))


bias = st.dictionaries(
    st.integers(0, VOCAB_SIZE - 1),
    st.floats(-1e4, 1e4, width=32) | st.just(-math.inf),
    max_size=4,
)
arguments = st.just({}) | st.fixed_dictionaries({"logit_bias": st.none() | bias})
# For every slot: None leaves it empty; a stopped one holds a request that yields no token this step.
occupants = st.lists(st.none() | st.tuples(arguments, st.booleans()), min_size=SLOTS, max_size=SLOTS)


@settings(max_examples=60)
@given(occupants, st.booleans())
def test_whatever_the_slots_hold_rows_follow_the_active_ones(
    pattern: list[tuple[dict[str, Any], bool] | None], in_chain: bool
) -> None:
    slots = Slots(in_chain=in_chain)
    expected: list[dict[int, float] | None] = []
    for slot, occupant in enumerate(pattern):
        if occupant is not None:
            args, stopped = occupant
            slots.fill(slot, args, stopped=stopped)
            if not stopped:
                expected.append(args.get("logit_bias"))
    slots.update()
    logits = random_logits(len(expected))
    assert_same_bits(slots.apply(logits), biased(logits, expected))


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 5), st.none() | arguments), min_size=1, max_size=25), st.booleans())
def test_a_long_history_leaves_nothing_behind(events: list[tuple[int, dict[str, Any] | None]], in_chain: bool) -> None:
    slots = Slots(in_chain=in_chain)
    held: dict[int, dict[int, float] | None] = {}
    for step, (slot, args) in enumerate(events):
        if slot in held:
            slots.empty(slot)
            del held[slot]
        elif args is not None:
            slots.fill(slot, args)
            held[slot] = args.get("logit_bias")
        slots.update()
        logits = random_logits(len(held), seed=step)
        assert_same_bits(slots.apply(logits), biased(logits, [held[s] for s in sorted(held)]))


def test_the_logits_are_edited_in_place() -> None:
    slots = Slots()
    slots.fill(2, {"logit_bias": {3: 1.0}})
    slots.update()
    logits = paddle.zeros([1, VOCAB_SIZE])
    where = logits.data_ptr()
    result = slots.processor.apply(logits)
    assert result.data_ptr() == where
    assert logits[0, 3].item() == 1.0


@pytest.mark.parametrize("args", [{}, {"logit_bias": None}, {"logit_bias": {}}, {"other": 1}])
def test_no_tensor_is_made_or_touched_when_nobody_has_a_bias(args: dict[str, Any]) -> None:
    slots = Slots()
    slots.fill(0, args)
    slots.fill(3, {"logit_bias": {1: 1.0}}, stopped=True)
    slots.update()
    assert slots.tensors() == []
    logits = paddle.to_tensor(random_logits(1))
    before = (logits.data_ptr(), logits.inplace_version)
    assert slots.processor.apply(logits) is logits
    assert (logits.data_ptr(), logits.inplace_version) == before


def test_nothing_is_read_again_while_batch_and_biases_stay() -> None:
    slots = Slots()
    slots.fill(0, {"logit_bias": {1: 1.0}})
    slots.fill(4, {})
    assert slots.update() == set(range(SLOTS))
    for _ in range(3):
        slots.apply(random_logits(2))
        assert slots.update() == set()


def test_only_slots_that_changed_are_read_again() -> None:
    slots = Slots()
    slots.fill(0, {"logit_bias": {1: 1.0}})
    slots.fill(4, {"logit_bias": {2: 1.0}})
    slots.update()
    slots.fill(7, {"logit_bias": {3: 1.0}})
    assert slots.update() == {7}
    slots.empty(0)
    slots.fill(2, {})
    assert slots.update() == {0, 2}
    logits = random_logits(3)
    assert_same_bits(slots.apply(logits), biased(logits, [None, {2: 1.0}, {3: 1.0}]))


def test_a_slot_that_stops_and_goes_on_keeps_its_bias() -> None:
    slots = Slots()
    slots.fill(0, {"logit_bias": {1: 1.0}})
    slots.fill(1, {"logit_bias": {2: 1.0}})
    logits = random_logits(2)
    for active, expected in (([0, 1], [{1: 1.0}, {2: 1.0}]), ([1], [{2: 1.0}]), ([0], [{1: 1.0}]), ([0, 1], None)):
        slots.active = active
        slots.update()
        rows = logits[: len(active)]
        assert_same_bits(slots.apply(rows), biased(rows, expected or [{1: 1.0}, {2: 1.0}]))


def test_kept_tensors_stay_while_batch_and_biases_do() -> None:
    # numpy has no bfloat16, so that the indices go to the device as on an accelerator.
    slots = Slots()
    slots.fill(0, {"logit_bias": {1: 1.0}})
    slots.fill(4, {})
    slots.update()
    logits = paddle.zeros([2, VOCAB_SIZE], "bfloat16")
    slots.processor.apply(logits)
    kept = slots.tensors()
    assert kept
    for _ in range(3):
        slots.update()
        slots.processor.apply(logits)
    assert slots.tensors() == kept
    expected = np.zeros((2, VOCAB_SIZE), np.float32)
    expected[0, 1] = 4.0
    np.testing.assert_array_equal(logits.astype("float32").numpy(), expected)


def test_rows_that_do_not_lie_side_by_side_are_edited_in_place() -> None:
    slots = Slots()
    slots.fill(0, {"logit_bias": {1: 1.0}})
    slots.fill(1, {"logit_bias": {3: -2.0}})
    slots.update()
    whole = paddle.zeros([4, VOCAB_SIZE])
    every_second = paddle.as_strided(whole, [2, VOCAB_SIZE], [2 * VOCAB_SIZE, 1])
    slots.processor.apply(every_second)
    assert_same_bits(whole.numpy(), biased(np.zeros((4, VOCAB_SIZE), np.float32), [{1: 1.0}, {}, {3: -2.0}]))


def test_results_follow_every_change_of_batch_or_biases(slots: Slots) -> None:
    slots.fill(0, {"logit_bias": {1: 1.0}})
    slots.fill(1, {"logit_bias": {2: 1.0}})
    slots.update()
    logits = random_logits(2)
    assert_same_bits(slots.apply(logits), biased(logits, [{1: 1.0}, {2: 1.0}]))

    slots.empty(1)
    slots.fill(1, {"logit_bias": {7: 3.0}})
    slots.update()
    assert_same_bits(slots.apply(logits), biased(logits, [{1: 1.0}, {7: 3.0}]))

    slots.empty(0)
    slots.update()
    logits = random_logits(1)
    assert_same_bits(slots.apply(logits), biased(logits, [{7: 3.0}]))

    slots.empty(1)
    slots.update()
    assert slots.tensors() == []
    assert slots.apply(random_logits(0)).shape == (0, VOCAB_SIZE)


def test_requests_that_share_one_dict_of_arguments_each_get_it() -> None:
    slots = Slots()
    args = {"logit_bias": {5: 2.0}}
    for slot in (1, 3):
        slots.fill(slot, args)
    slots.fill(2, {})
    slots.update()
    logits = random_logits(3)
    assert_same_bits(slots.apply(logits), biased(logits, [{5: 2.0}, None, {5: 2.0}]))


def test_minus_infinity_bans_a_token_for_its_row_alone() -> None:
    slots = Slots()
    slots.fill(0, {"logit_bias": {0: -math.inf}})
    slots.fill(1, {})
    slots.update()
    logits = np.full((2, VOCAB_SIZE), 0.0, np.float32)
    logits[:, 0] = 100.0
    result = slots.apply(logits)
    assert result[0, 0] == -np.inf
    assert result[0].argmax() != 0
    assert result[1].argmax() == 0
    assert not np.isnan(result).any()
