from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sequences import sequence

from fastdeploy_lp.logits_processor import ProcessorArgs
from fastdeploy_lp.logits_processor.share_inputs import ShareInputs

SLOTS = 4
MAX_MODEL_LEN = 8
BOTH_SIDES = ("token_ids_all", "next_tokens", "temperature", "top_p", "top_k")


def assert_in_step(share_inputs: ShareInputs) -> None:
    """Every field that lives on both sides holds the same on both."""
    for name in BOTH_SIDES:
        np.testing.assert_array_equal(share_inputs[name].numpy(), share_inputs[f"{name}_cpu"], err_msg=name)


def contents(share_inputs: ShareInputs) -> dict[str, Any]:
    """A copy of every field that compares by value."""
    return {name: list(value) if isinstance(value, list) else value.tolist() for name, value in share_inputs.items()}


@pytest.mark.parametrize(
    ("name", "width", "dtype", "empty"),
    [
        ("stop_flags", 1, np.bool_, True),
        ("prompt_lens", 1, np.int64, 0),
        ("step_idx", 1, np.int64, 0),
        ("token_ids_all_cpu", MAX_MODEL_LEN, np.int64, -1),
        ("seed", 1, np.uint64, 0),
    ],
)
def test_host_fields_are_numpy_arrays_with_a_row_for_every_slot(
    name: str, width: int, dtype: type[np.generic], empty: object
) -> None:
    field = ShareInputs(SLOTS, MAX_MODEL_LEN)[name]
    assert isinstance(field, np.ndarray)
    assert (field.shape, field.dtype) == ((SLOTS, width), dtype)
    assert (field == empty).all()


@pytest.mark.parametrize(
    ("name", "width", "dtype", "empty"),
    [
        ("token_ids_all", MAX_MODEL_LEN, paddle.int64, -1),
        ("next_tokens", 1, paddle.int64, -1),
        ("temperature", 1, paddle.float32, 0.0),
        ("top_p", 1, paddle.float32, 1.0),
        ("top_k", 1, paddle.int64, 0),
    ],
)
def test_device_fields_are_tensors_with_a_row_for_every_slot_and_a_host_mirror(
    name: str, width: int, dtype: paddle.dtype, empty: object
) -> None:
    share_inputs = ShareInputs(SLOTS, MAX_MODEL_LEN)
    field = share_inputs[name]
    assert isinstance(field, paddle.Tensor)
    assert (list(field.shape), field.dtype) == ([SLOTS, width], dtype)
    assert (field.numpy() == empty).all()
    assert isinstance(share_inputs[f"{name}_cpu"], np.ndarray)
    assert_in_step(share_inputs)


def test_list_fields_have_an_entry_for_every_slot() -> None:
    share_inputs = ShareInputs(SLOTS, MAX_MODEL_LEN)
    assert share_inputs["req_ids"] == [""] * SLOTS
    assert share_inputs["logits_processors_args"] == [{}] * SLOTS
    assert all(isinstance(args, ProcessorArgs) for args in share_inputs["logits_processors_args"])


def test_empty_slots_do_not_share_one_dict_of_arguments() -> None:
    entries = ShareInputs(SLOTS, MAX_MODEL_LEN)["logits_processors_args"]
    assert len({id(entry) for entry in entries}) == SLOTS


def test_it_is_a_mapping_of_all_its_fields() -> None:
    share_inputs = ShareInputs(SLOTS, MAX_MODEL_LEN)
    assert len(share_inputs) == len(list(share_inputs))
    assert all(share_inputs[name] is not None for name in share_inputs)
    assert "stop_flags" in share_inputs
    assert "no_such_field" not in share_inputs


def test_assign_writes_everything_that_a_request_brings() -> None:
    share_inputs = ShareInputs(SLOTS, MAX_MODEL_LEN)
    args = {"logit_bias": {3: 1.0}}
    entering = sequence(
        [7, 8, 9],
        request_id="mine",
        slot=2,
        temperature=0.5,
        top_p=0.25,
        top_k=7,
        seed=2**64 - 1,
        logits_processors_args=args,
    )
    share_inputs.assign(entering)
    expected = {"prompt_lens": 3, "step_idx": 0, "next_tokens_cpu": -1, "temperature_cpu": 0.5, "top_p_cpu": 0.25}
    expected |= {"top_k_cpu": 7, "seed": 2**64 - 1}
    for name, value in expected.items():
        assert share_inputs[name][2, 0] == value, name
    assert share_inputs["token_ids_all_cpu"][2].tolist() == [7, 8, 9] + [-1] * (MAX_MODEL_LEN - 3)
    assert share_inputs["req_ids"] == ["", "", "mine", ""]
    assert share_inputs["logits_processors_args"] == [{}, {}, args, {}]
    assert_in_step(share_inputs)


def test_arguments_also_answer_as_attributes() -> None:
    share_inputs = ShareInputs(SLOTS, MAX_MODEL_LEN)
    share_inputs.assign(sequence([1], slot=1, logits_processors_args={"enable_your_logits_processor": True}))
    entries = share_inputs["logits_processors_args"]
    assert entries[1].enable_your_logits_processor is True
    assert entries[1].something_else is None
    assert entries[0].enable_your_logits_processor is None


def test_an_assigned_slot_yields_no_token_before_it_is_active() -> None:
    share_inputs = ShareInputs(SLOTS, MAX_MODEL_LEN)
    share_inputs.assign(sequence([1], slot=1))
    assert share_inputs["stop_flags"].all()


@pytest.mark.parametrize("top_k", [-1, 0])
def test_every_spelling_of_no_top_k_is_zero(top_k: int) -> None:
    share_inputs = ShareInputs(SLOTS, MAX_MODEL_LEN)
    share_inputs.assign(sequence([1], slot=0, top_k=top_k))
    assert share_inputs["top_k_cpu"][0, 0] == 0


def test_a_sequence_that_comes_back_brings_its_output() -> None:
    share_inputs = ShareInputs(SLOTS, MAX_MODEL_LEN)
    share_inputs.assign(sequence([1, 2], output=[3, 4], slot=0))
    assert share_inputs["token_ids_all_cpu"][0, :5].tolist() == [1, 2, 3, 4, -1]
    assert share_inputs["prompt_lens"][0, 0] == 2
    assert share_inputs["step_idx"][0, 0] == 2
    assert share_inputs["next_tokens_cpu"][0, 0] == 4
    assert_in_step(share_inputs)


def test_a_slot_forgets_a_longer_occupant_when_a_shorter_one_enters() -> None:
    share_inputs = ShareInputs(SLOTS, MAX_MODEL_LEN)
    share_inputs.assign(sequence([1] * 7, slot=0))
    share_inputs.assign(sequence([2], slot=0))
    assert share_inputs["token_ids_all_cpu"][0].tolist() == [2] + [-1] * (MAX_MODEL_LEN - 1)
    assert_in_step(share_inputs)


def test_clear_empties_one_slot_and_leaves_its_neighbours() -> None:
    share_inputs = ShareInputs(SLOTS, MAX_MODEL_LEN)
    entering = [
        sequence([slot + 1], request_id=f"r{slot}", slot=slot, temperature=1.0, top_k=3, top_p=0.5, seed=9)
        for slot in range(SLOTS)
    ]
    expected = ShareInputs(SLOTS, MAX_MODEL_LEN)
    for one in entering:
        share_inputs.assign(one)
        if one.slot != 2:
            expected.assign(one)
    share_inputs.clear(2)
    assert contents(share_inputs) == contents(expected)


def test_set_active_says_exactly_which_slots_yield_a_token() -> None:
    share_inputs = ShareInputs(SLOTS, MAX_MODEL_LEN)
    for active in ([0, 3], [2], [], [0, 1, 2, 3]):
        share_inputs.set_active(np.array(active, np.int64))
        assert np.flatnonzero(~share_inputs["stop_flags"][:, 0]).tolist() == active


def test_appended_tokens_go_to_their_slots_on_both_sides() -> None:
    share_inputs = ShareInputs(SLOTS, MAX_MODEL_LEN)
    share_inputs.assign(sequence([1, 2], slot=0))
    share_inputs.assign(sequence([3], slot=3))
    share_inputs.append_tokens(np.array([0, 3]), np.array([50, 60]))
    share_inputs.append_tokens(np.array([3]), np.array([61]))
    tokens = share_inputs["token_ids_all_cpu"]
    assert tokens[0, :4].tolist() == [1, 2, 50, -1]
    assert tokens[3, :4].tolist() == [3, 60, 61, -1]
    assert (tokens[1:3] == -1).all()
    assert share_inputs["step_idx"][:, 0].tolist() == [1, 0, 0, 2]
    assert share_inputs["next_tokens_cpu"][:, 0].tolist() == [50, -1, -1, 61]
    assert_in_step(share_inputs)


def test_several_tokens_of_a_slot_are_those_of_single_calls() -> None:
    several, single = (ShareInputs(SLOTS, MAX_MODEL_LEN) for _ in range(2))
    for each in (several, single):
        each.assign(sequence([1, 2], slot=0))
        # Its last token does not fit.
        each.assign(sequence(list(range(MAX_MODEL_LEN - 1)), slot=3))
    several.append_tokens(np.array([0, 3]), np.array([50, 51, 52, 60, 61]), np.array([3, 2]))
    for slots, tokens in (([0, 3], [50, 60]), ([0, 3], [51, 61]), ([0], [52])):
        single.append_tokens(np.array(slots), np.array(tokens))
    for name in ("token_ids_all_cpu", "next_tokens_cpu", "step_idx"):
        assert several[name].tolist() == single[name].tolist()
    assert_in_step(several)


def test_the_last_token_of_a_full_context_is_recorded_where_there_is_room() -> None:
    share_inputs = ShareInputs(SLOTS, MAX_MODEL_LEN)
    full = list(range(MAX_MODEL_LEN))
    share_inputs.assign(sequence(full[:-1], slot=1))
    share_inputs.assign(sequence([9], slot=2))
    share_inputs.append_tokens(np.array([1, 2]), np.array([70, 80]))
    share_inputs.append_tokens(np.array([1, 2]), np.array([71, 81]))
    assert share_inputs["token_ids_all_cpu"][1].tolist() == [*full[:-1], 70]
    assert share_inputs["token_ids_all_cpu"][2, :4].tolist() == [9, 80, 81, -1]
    assert share_inputs["next_tokens_cpu"][:, 0].tolist() == [-1, 71, 81, -1]
    assert share_inputs["step_idx"][:, 0].tolist() == [0, 2, 2, 0]
    assert_in_step(share_inputs)


tokens = st.integers(0, 511)
operations = st.lists(
    st.one_of(
        st.tuples(st.just("assign"), st.integers(0, SLOTS - 1), st.lists(tokens, min_size=1, max_size=MAX_MODEL_LEN)),
        st.tuples(st.just("append"), st.integers(0, SLOTS - 1), tokens),
        st.tuples(st.just("clear"), st.integers(0, SLOTS - 1), st.none()),
        st.tuples(st.just("reset"), st.none(), st.none()),
    ),
    max_size=20,
)


@settings(max_examples=40)
@given(operations)
def test_after_any_history_host_and_device_agree_with_what_the_slots_hold(
    history: list[tuple[str, Any, Any]],
) -> None:
    share_inputs = ShareInputs(SLOTS, MAX_MODEL_LEN)
    held: dict[int, tuple[list[int], list[int]]] = {}
    for operation, slot, value in history:
        if operation == "assign":
            share_inputs.assign(sequence(value, slot=slot, temperature=0.5, top_k=3, logits_processors_args={"a": 1}))
            held[slot] = (value, [])
        elif operation == "append" and slot in held:
            share_inputs.append_tokens(np.array([slot]), np.array([value]))
            held[slot][1].append(value)
        elif operation == "clear":
            share_inputs.clear(slot)
            held.pop(slot, None)
        elif operation == "reset":
            share_inputs.reset()
            held.clear()
    assert_in_step(share_inputs)
    for slot in range(SLOTS):
        prompt, output = held.get(slot, ([], []))
        row = ([*prompt, *output] + [-1] * MAX_MODEL_LEN)[:MAX_MODEL_LEN]
        assert share_inputs["token_ids_all_cpu"][slot].tolist() == row
        assert share_inputs["step_idx"][slot, 0] == len(output)
        assert share_inputs["logits_processors_args"][slot] == ({"a": 1} if slot in held else {})
    share_inputs.reset()
    assert contents(share_inputs) == contents(ShareInputs(SLOTS, MAX_MODEL_LEN))
