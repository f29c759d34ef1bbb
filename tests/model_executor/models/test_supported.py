from __future__ import annotations

from typing import Any

import pytest

from fastdeploy_lp.checkpoint import CheckpointError
from fastdeploy_lp.model_executor.models.decoder import require_supported, sliding_window

FULL, SLIDING = "full_attention", "sliding_attention"


@pytest.mark.parametrize(
    ("config", "window"),
    [
        ({}, None),
        ({"sliding_window": None}, None),
        ({"sliding_window": 4096}, 4096),
        ({"sliding_window": 4096, "use_sliding_window": True}, 4096),
        ({"sliding_window": 4096, "use_sliding_window": False}, None),
        ({"sliding_window": 4096, "layer_types": None}, 4096),
        ({"sliding_window": 4096, "layer_types": [FULL, FULL]}, None),
        ({"sliding_window": 4096, "layer_types": [FULL, SLIDING]}, 4096),
        ({"sliding_window": 4096, "layer_types": [SLIDING], "use_sliding_window": False}, None),
    ],
)
def test_the_window_is_the_one_that_layers_use(config: dict[str, Any], window: int | None) -> None:
    assert sliding_window(config) == window


def test_a_window_is_none_as_long_as_no_context_is_longer() -> None:
    require_supported({"sliding_window": 128}, 128)
    with pytest.raises(CheckpointError, match=r"128 tokens is .* contexts of 129; give --max-model-len 128"):
        require_supported({"sliding_window": 128}, 129)


@pytest.mark.parametrize("config", [{}, {"hidden_act": "swish"}, {"partial_rotary_factor": 1.0}])
def test_what_the_decoder_computes_is_taken(config: dict[str, Any]) -> None:
    require_supported(config, 1 << 20)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config is not supported"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 is not supported"),
        ({"rope_parameters": {"partial_rotary_factor": 0.75}}, "partial_rotary_factor 0.75 is not supported"),
        ({"layer_types": [FULL, "linear_attention"]}, "layer_types has 'linear_attention'"),
        ({"sliding_window": -1}, "sliding_window is -1"),
        ({"layer_types": 5}, "layer_types is 5; it must be a list of texts"),
        ({"layer_types": [[FULL]]}, "layer_types is [['full_attention']]; it must be a list of texts"),
    ],
)
def test_another_computation_is_refused_by_the_name_of_its_field(config: dict[str, Any], reason: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        require_supported(config, 16)
    assert str(caught.value).startswith("config.json: ")
    assert reason in str(caught.value)
