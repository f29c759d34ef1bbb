"""Converts GGUF metadata to config.json."""

from __future__ import annotations

from typing import Any

import numpy as np
from gguf.constants import GGMLQuantizationType
from numpy.typing import NDArray

from fastdeploy_lp.checkpoint.gguf_architecture import LM_HEAD, ROPE_FACTORS, architecture_of
from fastdeploy_lp.checkpoint.gguf_file import GgufFile

# A GGUF stores only the factors computed from these; every published Llama 3 model uses these values.
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def rope_scaling(file: GgufFile, head_dim: int, theta: float) -> dict[str, Any] | None:
    """Returns the `rope_scaling` of config.json: None, linear, llama3 or yarn.

    Raises CheckpointError for scaling that none of these describes.
    """
    prefix = f"{file.required('general.architecture', str)}.rope.scaling"
    kind = file.optional(f"{prefix}.type", str, "none")
    if ROPE_FACTORS in file.tensors:
        return _llama3(file, head_dim, theta)
    if kind == "none":
        return None
    if kind == "linear":
        return {"rope_type": "linear", "factor": file.required(f"{prefix}.factor", float)}
    if kind == "yarn":
        return _yarn(file, prefix)
    raise file.error(f"rope scaling {kind!r} is not supported", "give a model with linear, llama3, yarn or no scaling")


def _yarn(file: GgufFile, prefix: str) -> dict[str, Any]:
    """Derives the attention factor from `factor`, as GGUF's own runtime does."""
    for name in ("attn_factor", "yarn_attn_factor", "yarn_ext_factor"):
        if file.optional(f"{prefix}.{name}", float, 1.0) != 1.0:
            raise file.error(f"metadata {prefix}.{name} is not supported", "give a model with plain yarn scaling")
    scaling: dict[str, Any] = {
        "rope_type": "yarn",
        "factor": file.required(f"{prefix}.factor", float),
        "original_max_position_embeddings": file.required(f"{prefix}.original_context_length", int),
    }
    for name in ("beta_fast", "beta_slow"):
        if (value := file.optional(f"{prefix}.yarn_{name}", float, None)) is not None:
            scaling[name] = value
    return scaling


def _llama3(file: GgufFile, head_dim: int, theta: float) -> dict[str, Any] | None:
    tensor = file.tensors[ROPE_FACTORS]
    if tensor.quant is not GGMLQuantizationType.F32 or tensor.shape != (head_dim // 2,):
        raise file.error(
            f"tensor {ROPE_FACTORS} is {tensor.quant.name} {list(tensor.shape)}, not F32 [{head_dim // 2}]"
        )
    stored = tensor.data.view(np.float32)
    factor = float(stored.max())
    if np.array_equal(stored, np.ones_like(stored)):
        return None
    if not np.allclose(stored, _llama3_factors(factor, head_dim, theta), rtol=1e-4):
        raise file.error(f"the scaling in tensor {ROPE_FACTORS} is not that of Llama 3", "give a Llama 3 model")
    return {"rope_type": "llama3", "factor": factor, **_LLAMA3}


def _llama3_factors(factor: float, head_dim: int, theta: float) -> NDArray[np.float64]:
    """Returns the divisors of the head_dim/2 frequencies."""
    low, high = _LLAMA3["low_freq_factor"], _LLAMA3["high_freq_factor"]
    frequencies = theta ** -(np.arange(0, head_dim, 2) / head_dim)
    turns = _LLAMA3["original_max_position_embeddings"] * frequencies / (2 * np.pi)
    kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
    factors: NDArray[np.float64] = 1.0 / (kept + (1.0 - kept) / factor)
    return factors


# Chat models use different tokens for the end of a turn and the end of a text; generation stops at any of them.
_END_TOKENS = ("eos_token_id", "eot_token_id", "eom_token_id")


def model_config(file: GgufFile) -> dict[str, Any]:
    """Returns the config.json of a GGUF model, under Hugging Face's names.

    Raises CheckpointError for an unsupported architecture and for metadata that is missing or contradicts itself.
    """
    architecture = architecture_of(file)
    sizes = _sizes(file)
    theta = _shortest(file.optional(_key(file, "rope.freq_base"), float, 10000.0))
    return {
        "_name_or_path": file.optional("general.name", str, file.path.stem),
        "architectures": [architecture.class_name],
        "model_type": architecture.model_type,
        **sizes,
        "max_position_embeddings": _positive(file, "context_length"),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "rms_norm_eps": _shortest(file.required(_key(file, "attention.layer_norm_rms_epsilon"), float)),
        "rope_theta": theta,
        "rope_scaling": rope_scaling(file, sizes["head_dim"], theta),
        "sliding_window": file.optional(_key(file, "attention.sliding_window"), int, None) or None,
        "tie_word_embeddings": LM_HEAD not in file.tensors,
        "bos_token_id": token_id(file, "bos_token_id"),
        "eos_token_id": _end_tokens(file),
        "pad_token_id": token_id(file, "padding_token_id"),
        "torch_dtype": "float32",
    }


def token_id(file: GgufFile, role: str) -> int | None:
    """Returns the id under `tokenizer.ggml.<role>`, or None. Raises CheckpointError if it is outside the vocabulary."""
    key = f"tokenizer.ggml.{role}"
    token = file.optional(key, int, None)
    if token is not None and not 0 <= token < len(file.required("tokenizer.ggml.tokens", list)):
        raise file.error(f"metadata {key} is {token}, which is not in the vocabulary")
    return token


def _key(file: GgufFile, name: str) -> str:
    return f"{file.required('general.architecture', str)}.{name}"


def _positive(file: GgufFile, name: str, default: int | None = None) -> int:
    key = _key(file, name)
    value = file.required(key, int) if default is None else file.optional(key, int, default)
    if value < 1:
        raise file.error(f"metadata {key} is {value}")
    return value


def _sizes(file: GgufFile) -> dict[str, int]:
    tokens = len(file.required("tokenizer.ggml.tokens", list))
    vocabulary = _positive(file, "vocab_size", tokens)
    hidden, heads = _positive(file, "embedding_length"), _positive(file, "attention.head_count")
    kv_heads = _positive(file, "attention.head_count_kv", heads)
    head_dim = _positive(file, "attention.key_length", hidden // heads)
    rotated = _positive(file, "rope.dimension_count", head_dim)
    if _positive(file, "attention.value_length", head_dim) != head_dim:
        raise file.error("heads of values and of keys have different sizes, which is not supported")
    if tokens > vocabulary:
        raise file.error(f"{tokens} tokens do not fit the vocabulary of {vocabulary}")
    if heads % kv_heads:
        raise file.error(f"{heads} attention heads cannot share {kv_heads} key-value heads evenly")
    if rotated != head_dim or head_dim % 2:
        raise file.error(f"rotary embedding of {rotated} of {head_dim} head dimensions is not supported")
    return {
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": _positive(file, "feed_forward_length"),
        "num_hidden_layers": _positive(file, "block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
    }


def _shortest(stored: float) -> float:
    # Metadata floats are float32: 1e-05 is read as 9.999999747378752e-06.
    return float(str(np.float32(stored)))


def _end_tokens(file: GgufFile) -> int | list[int] | None:
    found = list(dict.fromkeys(token for role in _END_TOKENS if (token := token_id(file, role)) is not None))
    if len(found) > 1:
        return found
    return found[0] if found else None
