"""The reference's own results for each kind are in test_families.py; here are spellings, bounds and refusals."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastdeploy_lp.checkpoint import CheckpointError
from fastdeploy_lp.model_executor.layers.rope_scaling import RopeFrequencies, rope_frequencies

HEAD_DIM = 64
PLAIN = 10000.0 ** -(np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
YARN = {"factor": 4.0, "original_max_position_embeddings": 512}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 512}


def scaled(kind: str, theta: float = 10000.0, **parameters: Any) -> RopeFrequencies:
    return rope_frequencies({"rope_theta": theta, "rope_scaling": {"rope_type": kind, **parameters}}, HEAD_DIM)


@pytest.mark.parametrize(("kind", "parameters"), [("linear", {"factor": 3.0}), ("llama3", LLAMA3), ("yarn", YARN)])
@pytest.mark.parametrize("type_key", ["rope_type", "type"])
def test_both_spellings_mean_the_same(kind: str, parameters: dict[str, Any], type_key: str) -> None:
    one = rope_frequencies({"rope_parameters": {type_key: kind, "rope_theta": 5e5, **parameters}}, HEAD_DIM)
    other = rope_frequencies({"rope_theta": 5e5, "rope_scaling": {type_key: kind, **parameters}}, HEAD_DIM)
    np.testing.assert_array_equal(one.frequencies, other.frequencies)
    assert one.attention_factor == other.attention_factor


@pytest.mark.parametrize("config", [{}, {"rope_scaling": None}, {"rope_parameters": {"rope_type": "default"}}])
def test_without_scaling_frequencies_are_those_of_the_paper(config: dict[str, Any]) -> None:
    np.testing.assert_allclose(rope_frequencies(config, HEAD_DIM).frequencies, PLAIN, rtol=1e-12)


def plain_yarn(theta: float, factor: float, original: int, fast: float, slow: float) -> np.ndarray:
    """A frequency at a time: kept where it turns often within the original context, divided where it turns little."""

    def dimension(rotations: float) -> float:
        return HEAD_DIM * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low, high = max(math.floor(dimension(fast)), 0), min(math.ceil(dimension(slow)), HEAD_DIM - 1)
    found = []
    for index in range(HEAD_DIM // 2):
        frequency = theta ** -(2 * index / HEAD_DIM)
        share = min(max((index - low) / ((high - low) or 0.001), 0.0), 1.0)
        found.append(frequency * (1 - share) + frequency / factor * share)
    return np.array(found)


@given(
    st.floats(1e3, 1e7),
    st.floats(1.0, 64.0),
    st.sampled_from((64, 512, 4096, 32768)),
    st.floats(8.0, 64.0),
    st.floats(0.5, 4.0),
)
def test_yarn_is_a_ramp_from_kept_to_divided(
    theta: float, factor: float, original: int, fast: float, slow: float
) -> None:
    found = scaled(
        "yarn", theta, factor=factor, original_max_position_embeddings=original, beta_fast=fast, beta_slow=slow
    )
    np.testing.assert_allclose(found.frequencies, plain_yarn(theta, factor, original, fast, slow), rtol=1e-9)
    assert found.attention_factor == pytest.approx(0.1 * math.log(factor) + 1)


def test_yarn_takes_the_attention_factor_from_the_config() -> None:
    assert scaled("yarn", **YARN, attention_factor=1.5).attention_factor == 1.5
    assert scaled("yarn", **YARN, mscale=1.0, mscale_all_dim=1.0).attention_factor == 1.0
    sharper = scaled("yarn", **YARN, mscale=2.0, mscale_all_dim=1.0).attention_factor
    assert sharper == pytest.approx((0.2 * math.log(4) + 1) / (0.1 * math.log(4) + 1))


def test_the_original_context_is_the_models_own_if_nothing_else_is_said() -> None:
    config = {"max_position_embeddings": 512, "rope_scaling": {"type": "yarn", "factor": 4.0}}
    np.testing.assert_array_equal(rope_frequencies(config, HEAD_DIM).frequencies, scaled("yarn", **YARN).frequencies)


@pytest.mark.parametrize(
    ("scaling", "reason"),
    [
        ({"rope_type": "longrope"}, "rope_scaling.rope_type 'longrope' is not supported; supported are default"),
        ({"rope_type": "linear"}, "rope_scaling.factor is missing"),
        ({"rope_type": "linear", "factor": 0}, "rope_scaling.factor is 0; it must be a number above 0"),
        ({"rope_type": "yarn", "factor": "4"}, "rope_scaling.factor is '4'"),
        ({"rope_type": "yarn", "factor": math.nan}, "rope_scaling.factor is nan"),
        ({"rope_type": "yarn", "factor": 4, "truncate": 1}, "truncate is 1; it must be true or false"),
        ({"rope_type": "llama3", "factor": 8.0}, "rope_scaling.low_freq_factor is missing"),
        ({"rope_type": "llama3", **LLAMA3, "low_freq_factor": 4.0}, "low_freq_factor 4.0 is not below"),
        ("yarn", "rope_scaling is 'yarn'; it must be an object"),
    ],
)
def test_a_scaling_that_cannot_be_used_names_the_field(scaling: Any, reason: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        rope_frequencies({"rope_scaling": scaling}, HEAD_DIM)
    assert str(caught.value).startswith("config.json: ")
    assert reason in str(caught.value)
