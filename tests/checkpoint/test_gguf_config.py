from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType

from fastdeploy_lp.checkpoint import CheckpointError
from fastdeploy_lp.checkpoint.gguf_config import model_config
from fastdeploy_lp.checkpoint.gguf_reader import read_gguf


def config_of(model: Any, tmp_path: Path) -> dict[str, Any]:
    return model_config(read_gguf(model.write(tmp_path / "tiny.gguf")))


def test_the_config_of_a_model(tmp_path: Path, tiny: Any) -> None:
    config = config_of(tiny, tmp_path)
    expected = {
        "_name_or_path": "Tiny",
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(tiny.metadata["tokenizer.ggml.tokens"]),
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-05,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "tie_word_embeddings": True,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": None,
        "torch_dtype": "float32",
    }
    assert {key: config[key] for key in expected} == expected


def test_every_end_token_is_in_the_config(tmp_path: Path, tiny: Any) -> None:
    tiny.metadata |= {"tokenizer.ggml.eot_token_id": 2, "tokenizer.ggml.eom_token_id": 1}
    assert config_of(tiny, tmp_path)["eos_token_id"] == [1, 2]


def test_linear_rope_scaling_is_kept(tmp_path: Path, tiny: Any) -> None:
    tiny.metadata |= {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    assert config_of(tiny, tmp_path)["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}


def test_llama3_rope_factors_become_the_parameters_they_came_from(tmp_path: Path, tiny: Any) -> None:
    # The frequencies of a head of 16 at theta 10000: wavelengths under 2048 stay, over 8192 are stretched 8 times.
    factors = np.array([1, 1, 1, 1, 1, 1, 0, 8], np.float32)
    wavelength = 2 * np.pi * 10000 ** (12 / 16)
    share = (8192 / wavelength - 1) / (4 - 1)
    factors[6] = 1 / ((1 - share) / 8 + share)
    tiny.tensors["rope_freqs.weight"] = (factors, GGMLQuantizationType.F32)
    config = config_of(tiny, tmp_path)
    assert config["rope_scaling"] == {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }


def test_rope_factors_of_one_scale_nothing(tmp_path: Path, tiny: Any) -> None:
    tiny.tensors["rope_freqs.weight"] = (np.ones(8, np.float32), GGMLQuantizationType.F32)
    assert config_of(tiny, tmp_path)["rope_scaling"] is None


def rope_factors(*shape: int) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        model.tensors["rope_freqs.weight"] = (np.full(shape, 3.0, np.float32), GGMLQuantizationType.F32)

    return change


def say(**values: Any) -> Callable[[Any], None]:
    """Metadata under `llama.`; two underscores stand for a dot, None removes."""

    def change(model: Any) -> None:
        for name, value in values.items():
            key = f"llama.{name.replace('__', '.')}"
            model.metadata.pop(key, None)
            if value is not None:
                model.metadata[key] = value

    return change


def rename_architecture(model: Any) -> None:
    model.metadata["general.architecture"] = "mamba"


def end_outside_vocabulary(model: Any) -> None:
    model.metadata["tokenizer.ggml.eos_token_id"] = 5000


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            rename_architecture,
            "architecture 'mamba' cannot be converted; give a GGUF of a supported one: ernie4_5, llama, phi3, qwen2,",
        ),
        (rope_factors(4), r"tensor rope_freqs\.weight is F32 \[4\], not F32 \[8\]"),
        (rope_factors(8), r"scaling in tensor rope_freqs\.weight is not that of Llama 3"),
        (say(rope__scaling__type="longrope"), "rope scaling 'longrope' is not supported"),
        (say(rope__scaling__type="yarn"), r"no metadata llama\.rope\.scaling\.factor"),
        (say(rope__scaling__type="linear"), r"no metadata llama\.rope\.scaling\.factor"),
        (say(block_count=None), r"no metadata llama\.block_count"),
        (say(block_count=0), r"metadata llama\.block_count is 0"),
        (say(feed_forward_length=[96, 96]), r"llama\.feed_forward_length is list, not int"),
        (say(attention__head_count_kv=3), "4 attention heads cannot share 3 key-value heads"),
        (say(rope__dimension_count=8), "rotary embedding of 8 of 16 head dimensions"),
        (say(vocab_size=10), "tokens do not fit the vocabulary of 10"),
        (end_outside_vocabulary, r"eos_token_id is 5000, which is not in the vocabulary"),
    ],
)
def test_a_model_that_cannot_be_converted_says_why(
    tmp_path: Path, tiny: Any, change: Callable[[Any], None], reason: str
) -> None:
    change(tiny)
    with pytest.raises(CheckpointError, match=reason) as caught:
        config_of(tiny, tmp_path)
    assert str(caught.value).startswith(f"{tmp_path / 'tiny.gguf'}: ")
    assert "; give " in str(caught.value)
    assert "\n" not in str(caught.value)
