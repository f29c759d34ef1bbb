"""Rejects models whose `config.json` needs features that the shared decoder does not compute."""

from __future__ import annotations

from typing import Any

from fastdeploy_lp.checkpoint.config_field import flag, positive_float, positive_int, texts
from fastdeploy_lp.checkpoint.errors import CheckpointError

SWIGLU = ("silu", "swish")


def require_supported(hf_config: dict[str, Any], max_model_len: int) -> None:
    """Raise CheckpointError naming the field, unless the model is what `DecoderForCausalLM` computes.

    A sliding window is accepted if no context is longer than it.
    """
    activation = hf_config.get("hidden_act", "silu")
    if activation not in SWIGLU:
        raise CheckpointError(f"config.json: hidden_act {activation!r} is not supported; supported is silu")
    if hf_config.get("quantization_config"):
        raise CheckpointError("config.json: quantization_config is not supported; give weights that are not quantized")
    _require_whole_heads_rotated(hf_config)
    window = sliding_window(hf_config)
    if window is not None and window < max_model_len:
        raise CheckpointError(
            f"config.json: a sliding_window of {window} tokens is not supported for contexts of {max_model_len}; give "
            f"--max-model-len {window} or less"
        )


def sliding_window(hf_config: dict[str, Any]) -> int | None:
    """Returns the number of tokens, itself included, that a token attends to; None for all before it.

    Raises CheckpointError for layers that are no attention over the context.
    """
    kinds = texts(hf_config, "layer_types")
    for kind in kinds:
        if kind not in ("full_attention", "sliding_attention"):
            raise CheckpointError(f"config.json: layer_types has {kind!r}, which is not supported")
    slides = not kinds or "sliding_attention" in kinds
    if not slides or hf_config.get("sliding_window") is None:
        return None
    return positive_int(hf_config, "sliding_window") if flag(hf_config, "use_sliding_window", default=True) else None


def _require_whole_heads_rotated(hf_config: dict[str, Any]) -> None:
    for place in (hf_config, hf_config.get("rope_parameters")):
        if isinstance(place, dict) and positive_float(place, "partial_rotary_factor", 1.0) != 1.0:
            share = place["partial_rotary_factor"]
            raise CheckpointError(f"config.json: partial_rotary_factor {share} is not supported; supported is 1")
