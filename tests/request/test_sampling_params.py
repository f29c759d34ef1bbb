from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastdeploy_lp.messages import AddRequest, ToWorker, decoder, encode
from fastdeploy_lp.request.sampling_params import (
    GREEDY_BELOW,
    MAX_LOGPROBS,
    MAX_N,
    MAX_SEED,
    MAX_STOP_STRINGS,
    SamplingParams,
)


def test_a_share_that_float32_cannot_hold_still_keeps_a_token() -> None:
    assert np.float32(SamplingParams(top_p=5e-324).top_p) > 0


def test_the_defaults_draw_freely_until_the_context_is_full() -> None:
    params = SamplingParams()
    assert (params.n, params.temperature, params.top_p, params.top_k) == (1, 1.0, 1.0, 0)
    assert (params.seed, params.max_tokens, params.stop, params.stop_token_ids) == (None, None, None, None)
    assert (params.ignore_eos, params.logits_processors_args, params.stop_strings) == (False, None, [])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 1),
        ("n", MAX_N),
        ("temperature", 0),
        ("temperature", 100.0),
        ("temperature", 2),
        ("top_p", 1e-9),
        ("top_p", 1),
        ("top_k", -1),
        ("top_k", 0),
        ("top_k", 1),
        ("top_k", 10**6),
        ("seed", 0),
        ("seed", MAX_SEED),
        ("max_tokens", 1),
        ("stop", []),
        ("stop", ["a"] * MAX_STOP_STRINGS),
        ("stop_token_ids", []),
        ("stop_token_ids", [0, 5]),
        ("ignore_eos", True),
        ("include_stop_str_in_output", True),
        ("skip_special_tokens", False),
        ("logits_processors_args", {}),
        ("min_p", 0),
        ("min_p", 1.0),
        ("repetition_penalty", 1e-3),
        ("repetition_penalty", 5),
        ("presence_penalty", -2),
        ("presence_penalty", 2.0),
        ("frequency_penalty", -2.0),
        ("frequency_penalty", 2),
        ("bad_words", []),
        ("bad_words", ["a", " b"]),
        ("bad_words_token_ids", [[1], [2, 3]]),
        ("allowed_token_ids", [0]),
        ("min_tokens", 0),
        ("min_tokens", 7),
        ("logprobs", 0),
        ("logprobs", MAX_LOGPROBS),
        ("prompt_logprobs", 0),
        ("prompt_logprobs", MAX_LOGPROBS),
        ("stream_interval", 1),
        ("stream_interval", 10**6),
    ],
)
def test_values_within_the_limits_are_taken(field: str, value: Any) -> None:
    assert getattr(SamplingParams(**{field: value}), field) == value


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 0),
        ("n", MAX_N + 1),
        ("n", 1.0),
        ("n", True),
        ("n", "1"),
        ("n", None),
        ("temperature", -0.1),
        ("temperature", 100.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", "hot"),
        ("temperature", True),
        ("temperature", None),
        ("top_p", 0),
        ("top_p", -0.5),
        ("top_p", 1.0001),
        ("top_p", math.nan),
        ("top_p", "0.5"),
        ("top_k", -2),
        ("top_k", 1.5),
        ("top_k", False),
        ("seed", -(2**63) - 1),
        ("seed", MAX_SEED + 1),
        ("seed", 1.0),
        ("seed", "7"),
        ("max_tokens", 0),
        ("max_tokens", -5),
        ("max_tokens", 2.0),
        ("max_tokens", True),
        ("stop", 5),
        ("stop", {"a": 1}),
        ("stop", ["a"] * (MAX_STOP_STRINGS + 1)),
        ("stop_token_ids", 5),
        ("stop_token_ids", 0),
        ("stop_token_ids", {5: 1}),
        ("ignore_eos", "yes"),
        ("include_stop_str_in_output", 1),
        ("skip_special_tokens", "no"),
        ("ignore_eos", None),
        ("logits_processors_args", [1]),
        ("logits_processors_args", "x"),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("min_p", math.nan),
        ("repetition_penalty", 0),
        ("repetition_penalty", 5e-324),
        ("repetition_penalty", -1.0),
        ("repetition_penalty", math.inf),
        ("presence_penalty", 2.1),
        ("presence_penalty", "1"),
        ("frequency_penalty", -2.1),
        ("frequency_penalty", None),
        ("stream_interval", 0),
        ("stream_interval", 2.0),
        ("bad_words", "word"),
        ("bad_words_token_ids", {1: 2}),
        ("allowed_token_ids", []),
        ("allowed_token_ids", "1"),
        ("min_tokens", -1),
        ("min_tokens", 1.0),
        ("logprobs", -1),
        ("logprobs", MAX_LOGPROBS + 1),
        ("logprobs", True),
        ("prompt_logprobs", 1.5),
    ],
)
def test_anything_else_is_refused_with_the_field_and_what_is_allowed(field: str, value: Any) -> None:
    with pytest.raises(ValueError) as caught:
        SamplingParams(**{field: value})
    message = str(caught.value)
    assert message.startswith(f"{field}: must be ")
    assert "\n" not in message


@pytest.mark.parametrize(
    ("field", "value", "path"),
    [
        ("stop", ["a", ""], "stop.1"),
        ("stop", "", "stop.0"),
        ("stop", ["a", "b", 3], "stop.2"),
        ("stop_token_ids", [1, -1], "stop_token_ids.1"),
        ("stop_token_ids", ["1"], "stop_token_ids.0"),
        ("stop_token_ids", [1, 2, True], "stop_token_ids.2"),
        ("bad_words", ["a", ""], "bad_words.1"),
        ("bad_words", ["a", " "], "bad_words.1"),
        ("bad_words", [5], "bad_words.0"),
        ("bad_words_token_ids", [[1], []], "bad_words_token_ids.1"),
        ("bad_words_token_ids", [[1], 5], "bad_words_token_ids.1"),
        ("bad_words_token_ids", [[1, -1]], "bad_words_token_ids.0.1"),
        ("allowed_token_ids", [1, None], "allowed_token_ids.1"),
    ],
)
def test_an_entry_of_a_list_is_named_by_its_index(field: str, value: Any, path: str) -> None:
    with pytest.raises(ValueError, match=rf"^{path}: must be "):
        SamplingParams(**{field: value})


def test_min_tokens_beyond_max_tokens_are_refused() -> None:
    assert SamplingParams(min_tokens=5, max_tokens=5).min_tokens == 5
    with pytest.raises(ValueError, match=r"^min_tokens: must be at most max_tokens, which is 4$"):
        SamplingParams(min_tokens=5, max_tokens=4)


def test_a_field_that_does_not_exist_is_refused() -> None:
    with pytest.raises(TypeError, match="temprature"):
        SamplingParams(temprature=1.0)  # type: ignore[call-arg]


@settings(max_examples=50)
@given(st.floats(0, 1))
def test_a_temperature_too_small_to_divide_by_is_greedy(temperature: float) -> None:
    settled = SamplingParams(temperature=temperature).temperature
    assert settled == (temperature if temperature >= GREEDY_BELOW else 0.0)


def test_one_stop_string_is_a_list_of_one() -> None:
    assert SamplingParams(stop="end").stop_strings == ["end"]
    assert SamplingParams(stop=["end", "fin"]).stop_strings == ["end", "fin"]


def test_a_copy_with_changes_is_checked_too() -> None:
    params = SamplingParams(top_k=5)
    assert msgspec.structs.replace(params, n=2).n == 2
    with pytest.raises(ValueError, match="n: must be"):
        msgspec.structs.replace(params, n=0)


numbers = st.integers() | st.floats() | st.booleans() | st.text(max_size=3) | st.none()
fields = {
    "n": numbers,
    "temperature": numbers | st.floats(0, 2) | st.builds(np.float64, st.floats(0, 2)),
    "top_p": numbers | st.floats(0, 1),
    "top_k": numbers | st.integers(0, 2**80),
    "seed": numbers | st.integers(0, MAX_SEED),
    "stop": numbers | st.lists(numbers),
    "stop_token_ids": numbers | st.lists(st.integers(0, 2**80) | numbers, max_size=3),
    "ignore_eos": numbers,
    "min_p": numbers | st.floats(0, 1),
    "repetition_penalty": numbers | st.floats(0, 3) | st.builds(np.float64, st.floats(0.1, 3)),
    "frequency_penalty": numbers | st.floats(-2, 2),
    "min_tokens": numbers,
    "logprobs": numbers,
    "allowed_token_ids": numbers | st.lists(st.integers(0, 2**80) | numbers, max_size=3),
    "bad_words": numbers | st.lists(numbers, max_size=3),
    "bad_words_token_ids": numbers | st.lists(st.lists(st.integers(0, 9), max_size=2) | numbers, max_size=3),
}


@settings(max_examples=300)
@given(st.sampled_from(sorted(fields)).flatmap(lambda name: st.tuples(st.just(name), fields[name])))
def test_what_is_accepted_reaches_the_worker_unchanged(given_field: tuple[str, Any]) -> None:
    field, value = given_field
    try:
        params = SamplingParams(**{field: value})
    except ValueError:
        return
    arrived = decoder(ToWorker).decode(encode(AddRequest("r", [1], params))).params
    assert msgspec.structs.asdict(arrived) == msgspec.structs.asdict(params)


@pytest.mark.parametrize("field", ["temperature", "top_p"])
def test_a_numpy_number_reaches_the_worker(field: str) -> None:
    params = SamplingParams(**{field: np.float64(0.5)})
    assert getattr(decoder(ToWorker).decode(encode(AddRequest("r", [1], params))).params, field) == 0.5


@pytest.mark.parametrize("top_k", [2**63, 2**64, 2**80])
def test_a_top_k_beyond_64_bits_is_refused_or_means_all(top_k: int) -> None:
    try:
        params = SamplingParams(top_k=top_k)
    except ValueError as error:
        refused = str(error)
    else:
        refused = "top_k: " if params.top_k in (0, 2**63 - 1) else ""
    assert refused.startswith("top_k: ")


@pytest.mark.parametrize(
    ("given", "taken"), [(-2, 2**64 - 2), (-(2**63), 2**63), (7, 7), (2**64 - 1, 2**64 - 1), (-1, None)]
)
def test_a_negative_seed_is_one_too_and_minus_one_is_none(given: int, taken: int | None) -> None:
    assert SamplingParams(seed=given).seed == taken
