"""Models that cannot be served through PaddleFormers are refused in one line with the reason."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("paddleformers.nn", reason="PaddleFormers is not installed; make test-paddleformers installs it")

from formers.through_formers import Served, config_of, make_models
from safetensors.numpy import load_file, save_file

from fastdeploy_lp.checkpoint.errors import CheckpointError
from fastdeploy_lp.model_executor.causal_lm import load_causal_lm

# PaddleFormers' own.
pytestmark = pytest.mark.filterwarnings("default")
Tensors = dict[str, np.ndarray]
EXPERT = "model.layers.1.mlp.experts.2.up_proj.weight"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    make_models(folder, "qwen3-moe", "glm4-moe", "ernie45-moe", "qwen3-next")
    return folder


def changed(source: Path, target: Path, config: dict[str, Any], change: Callable[[Tensors], object]) -> Path:
    shutil.copytree(source, target)
    content = json.loads((source / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(content | config))
    tensors = load_file(source / "model.safetensors")
    change(tensors)
    save_file(tensors, target / "model.safetensors", {"format": "pt"})
    return target


def refusal(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        Served(folder)
    message = str(caught.value)
    assert str(folder) in message
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (
            {"architectures": ["MambaForCausalLM"]},
            "not supported by PaddleFormers, which has .*Qwen3Moe",
        ),
        ({"architectures": ["Qwen3MoeModel"]}, "are not supported by PaddleFormers"),
        ({"architectures": ["MiniMaxM2ForCausalLM"]}, "PaddleFormers' minimax_m2 cannot be imported: .*paddlefleet"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config is not supported"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000; the weights are only 84 tensors"),
        ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "of type 'dynamic'"),
        ({"hidden_size": "wide"}, "PaddleFormers cannot build Qwen3MoeForCausalLMDeprecated"),
        ({"num_attention_heads": 16}, r"does not fill model\.layers\.0\.self_attn\.|tensors do not fit"),
        ({"vocab_size": 500}, r"embed_tokens\.weight has shape \[512, 64\]; config\.json makes it 32000 numbers"),
    ],
)
def test_configurations(config: dict[str, Any], reason: str, made: Path, tmp_path: Path) -> None:
    message = refusal(changed(made / "qwen3-moe", tmp_path / "model", config, lambda _tensors: None))
    assert re.search(reason, message), message


def with_nan(tensors: Tensors) -> None:
    tensors[EXPERT][3, 4] = np.nan


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda tensors: tensors.pop(EXPERT), f"tensor {EXPERT} is missing"),
        (lambda tensors: tensors.pop("model.norm.weight"), "tensor model.norm.weight is missing"),
        (lambda tensors: tensors.update(extra=np.ones(3, np.float32)), "tensor extra is unknown to the model"),
        (with_nan, f"tensor {EXPERT} holds NaN or infinity"),
        (lambda tensors: tensors.update({EXPERT: tensors[EXPERT][:, :60].copy()}), "does not fill|do not fit"),
    ],
)
def test_weights(change: Callable[[Tensors], object], reason: str, made: Path, tmp_path: Path) -> None:
    message = refusal(changed(made / "qwen3-moe", tmp_path / "model", {}, change))
    assert any(each in message for each in reason.split("|")), message


def test_a_mixture_whose_operator_has_no_kernel_here(made: Path) -> None:
    message = refusal(made / "ernie45-moe")
    assert "PaddleFormers cannot compute Ernie4_5_MoeForCausalLM on this machine" in message
    assert "expand_modality_expert_id" in message


def test_linear_attention_whose_state_runs_over_all_tokens_of_a_batch(made: Path) -> None:
    assert "Qwen3NextForCausalLM is not supported; PaddleFormers mixes the tokens of a batch" in refusal(
        made / "qwen3-next"
    )


def test_quantization(made: Path) -> None:
    fd_config = config_of(made / "qwen3-moe")
    model = dataclasses.replace(fd_config.model_config, quantization="w8a8")
    with pytest.raises(CheckpointError, match="quantization: w8a8 is not allowed through PaddleFormers"):
        load_causal_lm(dataclasses.replace(fd_config, model_config=model))


def test_dtype(made: Path) -> None:
    fd_config = config_of(made / "qwen3-moe")
    model = dataclasses.replace(fd_config.model_config, dtype="bfloat16")
    with pytest.raises(CheckpointError, match="dtype: bfloat16 is not allowed through PaddleFormers"):
        load_causal_lm(dataclasses.replace(fd_config, model_config=model))


def test_layers_for_drafts_in_a_checkpoint_are_left_out(made: Path, tmp_path: Path) -> None:
    """GLM-4.5's files have such a layer after the model's own, under the next number."""

    def add_layer(tensors: Tensors) -> None:
        tensors["model.layers.3.eh_proj.weight"] = np.ones((64, 128), np.float32)

    Served(changed(made / "glm4-moe", tmp_path / "model", {"num_nextn_predict_layers": 1}, add_layer))
