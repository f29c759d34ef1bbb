from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from support.golden import cases
from support.sequences import request, run_to_end
from support.tiny import GOLDEN, tiny_fd_config

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.logits_processor import LogitsProcessorChain
from fastdeploy_lp.model_executor.loader.weights import WeightsError, open_weights
from fastdeploy_lp.model_executor.models.registry import MODELS
from fastdeploy_lp.worker.engine_core import EngineCore
from fastdeploy_lp.worker.model_runner import ModelRunner

Tensors = dict[str, np.ndarray]


def checkpoint(
    tmp_path: Path, name: str, change: Callable[[Tensors], object] = lambda _: None, **config: Any
) -> FDConfig:
    """A copy of a tiny model whose tensors went through `change`, with these entries of config.json."""
    tensors = load_file(GOLDEN / name / "model.safetensors")
    change(tensors)
    save_file(tensors, tmp_path / "model.safetensors")
    fd_config = tiny_fd_config(name, max_num_seqs=1)
    hf_config = {**fd_config.model_config.hf_config, **config}
    (tmp_path / "config.json").write_text(json.dumps(hf_config))
    model_config = dataclasses.replace(fd_config.model_config, directory=str(tmp_path), hf_config=hf_config)
    return dataclasses.replace(fd_config, model_config=model_config)


ASKED = 2


def answer(config: FDConfig) -> list[int]:
    """What the model says to the prompt of case ASKED."""
    engine = EngineCore(config, LogitsProcessorChain([], config))
    prompt = cases(config.model_config.model)[ASKED].prompt
    return run_to_end(engine, [request("r", prompt, max_tokens=8)])["r"].token_ids


def refusal(config: FDConfig, kind: type[Exception] = WeightsError) -> str:
    with pytest.raises(kind) as caught:
        ModelRunner(config, LogitsProcessorChain([], config)).load_model()
    message = str(caught.value)
    assert "\n" not in message
    return message


TENSORS = (
    "model.embed_tokens.weight",
    "model.layers.0.input_layernorm.weight",
    "model.layers.1.self_attn.q_proj.weight",
    "model.layers.1.self_attn.o_proj.weight",
    "model.layers.2.mlp.gate_proj.weight",
    "model.layers.2.mlp.up_proj.weight",
    "model.layers.2.mlp.down_proj.weight",
    "model.norm.weight",
    "lm_head.weight",
)


@pytest.mark.parametrize("tensor", TENSORS)
def test_a_missing_tensor_is_named(tmp_path: Path, tensor: str) -> None:
    message = refusal(checkpoint(tmp_path, "tiny-llama", lambda tensors: tensors.pop(tensor)))
    assert message == f"{tmp_path / 'model.safetensors'}: tensor {tensor} is missing"


@pytest.mark.parametrize("tensor", ["model.layers.3.mlp.up_proj.weight", "model.layers.0.self_attn.q_norm.weight"])
def test_a_tensor_that_the_model_does_not_know_is_named(tmp_path: Path, tensor: str) -> None:
    extra = np.zeros((2, 2), np.float32)
    message = refusal(checkpoint(tmp_path, "tiny-llama", lambda tensors: tensors.update({tensor: extra})))
    assert message == f"{tmp_path / 'model.safetensors'}: tensor {tensor} is unknown to the model"


@pytest.mark.parametrize("tensor", TENSORS)
def test_a_tensor_of_the_wrong_shape_is_named_with_both_shapes(tmp_path: Path, tensor: str) -> None:
    def cut(tensors: Tensors) -> None:
        tensors[tensor] = tensors[tensor][:-1].copy()

    right = list(load_file(GOLDEN / "tiny-llama" / "model.safetensors")[tensor].shape)
    wrong = [right[0] - 1, *right[1:]]
    message = refusal(checkpoint(tmp_path, "tiny-llama", cut))
    expected = f"tensor {tensor} has shape {wrong}; config.json makes it {right}"
    assert message == f"{tmp_path / 'model.safetensors'}: {expected}"


def test_a_file_that_is_no_safetensors_is_named(tmp_path: Path) -> None:
    config = checkpoint(tmp_path, "tiny-llama")
    whole = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    message = refusal(config)
    assert str(tmp_path / "model.safetensors") in message
    assert "cannot be read as safetensors" in message


def test_weights_may_lie_in_several_files(tmp_path: Path) -> None:
    tensors = load_file(GOLDEN / "tiny-llama" / "model.safetensors")
    names = sorted(tensors)
    for part, own in enumerate((names[:10], names[10:])):
        save_file({name: tensors[name] for name in own}, tmp_path / f"model-{part}.safetensors")
    config = checkpoint(tmp_path, "tiny-llama")
    (tmp_path / "model.safetensors").unlink()
    assert answer(config) == cases("tiny-llama")[ASKED].greedy[:8]


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(np.nan, np.float32), (np.inf, np.float16), (-np.inf, np.float64), (1e300, np.float64)],
)
def test_a_weight_that_is_no_number_is_named(tmp_path: Path, value: float, dtype: type[np.floating[Any]]) -> None:
    weight = np.ones((40, 30), dtype)
    weight[17, 5] = value
    save_file({"x": weight}, tmp_path / "model.safetensors")
    with open_weights([tmp_path / "model.safetensors"]) as weights, pytest.raises(WeightsError) as caught:
        weights.take("x", [40, 30])
    assert str(caught.value) == f"{tmp_path / 'model.safetensors'}: tensor x holds NaN or infinity"


def test_weights_whose_sum_is_too_large_for_a_float_are_numbers_all_the_same(tmp_path: Path) -> None:
    save_file({"x": np.full((8, 8), 3e38, np.float32)}, tmp_path / "model.safetensors")
    with open_weights([tmp_path / "model.safetensors"]) as weights:
        assert (weights.take("x", [8, 8]) == np.float32(3e38)).all()


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int32, np.int64, np.bool_])
def test_weights_that_are_no_floats_are_refused(tmp_path: Path, dtype: type[np.generic]) -> None:
    save_file({"x": np.ones((2, 2), dtype)}, tmp_path / "model.safetensors")
    with open_weights([tmp_path / "model.safetensors"]) as weights, pytest.raises(WeightsError, match="must be one of"):
        weights.take("x", [2, 2])


def test_frequencies_that_old_checkpoints_hold_are_passed_over(tmp_path: Path) -> None:
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(4, np.float32)}
    assert answer(checkpoint(tmp_path, "tiny-llama", lambda tensors: tensors.update(extra)))


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_weights_of_another_precision_are_converted(tmp_path: Path, dtype: type[np.floating[Any]]) -> None:
    save_file({"x": np.array([0.5, -3.0], dtype)}, tmp_path / "model.safetensors")
    with open_weights([tmp_path / "model.safetensors"]) as weights:
        taken = weights.take("x", [2])
    assert taken.dtype == np.float32
    assert taken.tolist() == [0.5, -3.0]


def test_bfloat16_weights_are_converted(tmp_path: Path) -> None:
    # 1.0 and -3.5 need no more than bfloat16 has.
    save_bfloat16({"x": np.array([[1.0, -3.5]], np.float32)}, tmp_path / "model.safetensors")
    with open_weights([tmp_path / "model.safetensors"]) as weights:
        taken = weights.take("x", [1, 2])
    assert taken.dtype == np.float32
    assert taken.tolist() == [[1.0, -3.5]]


def save_bfloat16(tensors: Tensors, path: Path) -> None:
    """The upper half of every float32: a safetensors file as most published models are."""
    header: dict[str, Any] = {}
    body = b""
    for name, array in tensors.items():
        data = (array.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()
        header[name] = {"dtype": "BF16", "shape": list(array.shape), "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)


def test_a_tied_head_that_the_file_repeats_changes_nothing(tmp_path: Path) -> None:
    def same_head(tensors: Tensors) -> None:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()

    config = checkpoint(tmp_path, "tiny-llama3-rope", same_head)
    assert answer(config) == cases("tiny-llama3-rope")[ASKED].greedy[:8]


@pytest.mark.parametrize("architectures", [["MambaForCausalLM"], [], None])
def test_an_architecture_that_is_not_supported_lists_the_supported_ones(
    tmp_path: Path, architectures: list[str] | None
) -> None:
    message = refusal(checkpoint(tmp_path, "tiny-llama", architectures=architectures), ValueError)
    assert f"supported are {', '.join(MODELS)}" in message
    assert "MambaForCausalLM" in message or not architectures


@pytest.mark.parametrize("key", ["rope_parameters", "rope_scaling"])
@pytest.mark.parametrize("kind_key", ["rope_type", "type"])
def test_a_rope_type_that_is_not_supported_lists_the_supported_ones(tmp_path: Path, key: str, kind_key: str) -> None:
    config = {"rope_parameters": None, "rope_scaling": None, key: {kind_key: "dynamic", "factor": 2.0}}
    message = refusal(checkpoint(tmp_path, "tiny-llama", **config), ValueError)
    assert f"{key}.rope_type 'dynamic' is not supported; supported are default, linear, llama3, yarn" in message


@pytest.mark.parametrize(
    "config",
    [
        {"rope_parameters": None, "rope_theta": 500000.0, "rope_scaling": "llama3"},
        {"rope_parameters": "llama3"},
    ],
    ids=["rope_scaling", "rope_parameters"],
)
def test_both_spellings_of_rope_settings_are_read(tmp_path: Path, config: dict[str, Any]) -> None:
    llama3 = tiny_fd_config("tiny-llama3-rope").model_config.hf_config["rope_parameters"]
    config = {key: llama3 if value == "llama3" else value for key, value in config.items()}
    settled = checkpoint(tmp_path, "tiny-llama3-rope", **config)
    assert answer(settled) == cases("tiny-llama3-rope")[ASKED].greedy[:8]


@pytest.mark.parametrize("field", ["num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads"])
def test_a_config_without_a_size_names_it(tmp_path: Path, field: str) -> None:
    config = checkpoint(tmp_path, "tiny-llama")
    hf_config = {key: value for key, value in config.model_config.hf_config.items() if key != field}
    model_config = dataclasses.replace(config.model_config, hf_config=hf_config)
    message = refusal(dataclasses.replace(config, model_config=model_config), ValueError)
    assert message == f"{tmp_path}: config.json: {field} is missing"


@pytest.mark.parametrize("change", [{"hidden_act": "gelu"}, {"hidden_act": "relu"}])
def test_a_config_that_asks_for_another_computation_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    assert next(iter(change.values())) in refusal(checkpoint(tmp_path, "tiny-llama", **change), ValueError)
