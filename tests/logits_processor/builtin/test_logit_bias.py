from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sequences import sequence
from support.tiny import tiny_fd_config

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.logits_processor.builtin.logit_bias import LogitBiasLogitsProcessor
from fastdeploy_lp.worker.share_inputs import ShareInputs

VOCAB_SIZE = 10
SLOTS = 16
MAX_MODEL_LEN = 8


def small_config() -> FDConfig:
    config = tiny_fd_config(max_num_seqs=SLOTS, max_model_len=MAX_MODEL_LEN)
    return dataclasses.replace(config, model_config=dataclasses.replace(config.model_config, vocab_size=VOCAB_SIZE))


class Slots:
    """A processor and the slots it reads, filled and emptied as the worker does it."""

    def __init__(self) -> None:
        self.processor = LogitBiasLogitsProcessor(small_config())
        self.share_inputs = ShareInputs(SLOTS, MAX_MODEL_LEN)
        self.active: list[int] = []

    def fill(self, slot: int, args: dict[str, Any], *, stopped: bool = False) -> None:
        self.share_inputs.assign(sequence([1], slot=slot, max_model_len=MAX_MODEL_LEN, logits_processors_args=args))
        if not stopped:
            self.active = sorted({*self.active, slot})

    def empty(self, slot: int) -> None:
        self.share_inputs.clear(slot)
        self.active.remove(slot)

    def update(self) -> None:
        self.share_inputs.set_active(np.array(self.active, np.int64))
        self.processor.update_state(self.share_inputs)

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

        collect(list(vars(self.processor).values()))
        return found


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


def test_requests_come_and_go_and_every_row_gets_its_own_bias() -> None:
    slots = Slots()

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


@settings(deadline=None, max_examples=60)
@given(occupants)
def test_whatever_the_slots_hold_rows_follow_the_active_ones(
    pattern: list[tuple[dict[str, Any], bool] | None],
) -> None:
    slots = Slots()
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


@settings(deadline=None, max_examples=15)
@given(st.lists(st.tuples(st.integers(0, 5), st.none() | arguments), min_size=1, max_size=25))
def test_a_long_history_leaves_nothing_behind(events: list[tuple[int, dict[str, Any] | None]]) -> None:
    slots = Slots()
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


def test_tensors_are_kept_while_batch_and_biases_stay() -> None:
    slots = Slots()
    slots.fill(0, {"logit_bias": {1: 1.0}})
    slots.fill(4, {})
    slots.update()
    kept = slots.tensors()
    assert kept
    for _ in range(3):
        slots.update()
        slots.apply(random_logits(2))
    assert slots.tensors() == kept


def test_tensors_follow_every_change_of_batch_or_biases() -> None:
    slots = Slots()
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
