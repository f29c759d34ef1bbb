from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sequences import request, sequence

from fastdeploy_lp.logits_processor import ProcessorArgs, Selection
from fastdeploy_lp.worker.sequence import NO_SLOT, Sequence

EOS = 2


def from_request(**params: object) -> Sequence:
    return Sequence.from_request(request("r", [5, 6, 7], **params), (EOS, 9), max_model_len=10)


def feed(one: Sequence, tokens: list[int]) -> list[int]:
    """Append until the sequence ends; gives the tokens that it took."""
    taken = []
    for token in tokens:
        if one.finish_reason is not None:
            break
        one.append(token)
        taken.append(token)
    return taken


def test_a_new_sequence_waits_with_nothing_computed() -> None:
    one = from_request()
    assert (one.slot, one.num_computed, one.num_tokens, one.block_table) == (NO_SLOT, 0, 3, [])
    assert (one.finish_reason, one.stop_reason) == (None, None)


@pytest.mark.parametrize(("asked", "given"), [(None, 7), (4, 4), (7, 7), (100, 7)])
def test_a_sequence_ends_at_the_latest_when_the_context_is_full(asked: int | None, given: int) -> None:
    one = from_request(max_tokens=asked, ignore_eos=True)
    assert len(feed(one, [1] * 200)) == given
    assert (one.finish_reason, one.stop_reason) == ("length", None)


@pytest.mark.parametrize("stop", [EOS, 9])
def test_an_end_of_sequence_token_stops(stop: int) -> None:
    one = from_request()
    assert feed(one, [1, stop, 1]) == [1, stop]
    assert (one.finish_reason, one.stop_reason) == ("stop", stop)


def test_end_of_sequence_as_the_last_allowed_token_is_a_stop() -> None:
    one = from_request(max_tokens=2)
    feed(one, [1, EOS])
    assert (one.finish_reason, one.stop_reason) == ("stop", EOS)


def test_stop_token_ids_stop_beside_the_models_own() -> None:
    one = from_request(stop_token_ids=[40, 41])
    assert feed(one, [1, 41, 40]) == [1, 41]
    assert (one.finish_reason, one.stop_reason) == ("stop", 41)
    other = from_request(stop_token_ids=[40])
    assert feed(other, [EOS, 1]) == [EOS]


def test_ignore_eos_goes_on_past_the_models_tokens_but_not_past_the_requests() -> None:
    one = from_request(ignore_eos=True, stop_token_ids=[40])
    assert feed(one, [EOS, 9, 40, 1]) == [EOS, 9, 40]
    assert one.stop_reason == 40


def test_a_token_of_the_prompt_never_stops() -> None:
    one = from_request(stop_token_ids=[7])
    one.append(1)
    assert one.finish_reason is None


@settings(max_examples=50)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=9), st.lists(st.integers(0, 9), max_size=9), st.data())
def test_tokens_between_two_positions_are_those_of_prompt_and_output(
    prompt: list[int], output: list[int], data: st.DataObject
) -> None:
    one = sequence(prompt, output=output)
    start = data.draw(st.integers(0, one.num_tokens))
    end = data.draw(st.integers(start, one.num_tokens))
    assert one.token_ids_between(start, end) == (prompt + output)[start:end]


def test_the_selection_is_the_requests_and_empty_without() -> None:
    selection = Selection(named={"P": {"a": 1}}, order=("P",))
    assert from_request(selection=selection).selection == selection
    assert from_request(logits_processors_args={"a": 1}).selection.args_for("Any") == {"a": 1}
    nothing = from_request().selection.args_for("Any")
    assert nothing == {}
    assert isinstance(nothing, ProcessorArgs)
    assert nothing.anything is None
