"""Rotary position scaling of a GGUF model."""

from __future__ import annotations

from typing import Any

import numpy as np
from gguf.constants import GGMLQuantizationType
from numpy.typing import NDArray

from fastdeploy_lp.checkpoint.gguf_architecture import ROPE_FACTORS
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
