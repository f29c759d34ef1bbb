"""Values that all sequences of a request carry together."""

from __future__ import annotations

from typing import Any

import pytest

from fastdeploy_lp.engine.errors import InvalidRequestError
from fastdeploy_lp.engine.prepare.input_processor import num_values, require_few_values
from fastdeploy_lp.request.limits import MAX_CARRIED_VALUES
from fastdeploy_lp.request.sampling_params import SamplingParams

TOO_MUCH: dict[str, tuple[dict[str, Any], int]] = {
    "bad_words": ({"bad_words": ["word"] * 4096}, 2048),
    "bad_words_token_ids": ({"bad_words_token_ids": [[1] * 2000] * 491, "n": 128}, 1),
    "allowed_token_ids": ({"allowed_token_ids": list(range(49_152))}, 256),
    "logit_bias": ({"logit_bias": {str(token): 1.0 for token in range(4096)}}, 2000),
    "logits_processors_args": ({"logits_processors_args": {"banned": [[1]] * 16_384}, "n": 31}, 1),
    "extra_args": ({"extra_args": {"a": {"b": [1] * 60_000}}, "n": 17}, 1),
    "logits_processors": ({"logits_processors": [{"name": "a", "params": {"b": [1] * 60_000}}]}, 17),
    "stop_token_ids": ({"stop_token_ids": [1] * 4096, "n": 2}, 128),
}


@pytest.mark.parametrize("field", TOO_MUCH)
def test_too_much_for_all_sequences_is_refused_with_field_and_limit(field: str) -> None:
    fields, prompts = TOO_MUCH[field]
    with pytest.raises(InvalidRequestError) as caught:
        require_few_values(SamplingParams(**fields), prompts)
    assert caught.value.param == field
    assert str(MAX_CARRIED_VALUES) in caught.value.reason


@pytest.mark.parametrize("field", TOO_MUCH)
def test_one_sequence_carries_what_a_body_may_hold(field: str) -> None:
    fields, _ = TOO_MUCH[field]
    require_few_values(SamplingParams(**{**fields, "n": 1}), 1)


def test_fields_count_together_and_the_largest_is_blamed() -> None:
    params = SamplingParams(logit_bias={str(token): 1.0 for token in range(300)}, stop_token_ids=[1] * 200)
    require_few_values(params, MAX_CARRIED_VALUES // 500)
    with pytest.raises(InvalidRequestError, match="logit_bias, stop_token_ids have 500 values") as caught:
        require_few_values(params, MAX_CARRIED_VALUES // 500 + 1)
    assert caught.value.param == "logit_bias"


def test_values_inside_of_values_count() -> None:
    assert num_values({"a": [1, [2, {"b": 3}]], "c": "text"}) == 2 + 2 + 2 + 1
    assert num_values(None) == num_values("text") == 0
