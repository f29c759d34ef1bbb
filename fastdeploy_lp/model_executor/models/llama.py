"""The Llama family (Touvron et al., 2023); SmolLM2 is one of it."""

from __future__ import annotations

from typing import Any

from fastdeploy_lp.model_executor.decoder_weights import DecoderWeights, LayerWeights, LinearWeights
from fastdeploy_lp.model_executor.loader.weights import Weights
from fastdeploy_lp.model_executor.models.decoder import DecoderForCausalLM
from fastdeploy_lp.model_executor.models.dimensions import Dimensions


class LlamaForCausalLM(DecoderForCausalLM):
    """A Llama decoder with its language-model head."""

    @classmethod
    def read_weights(cls, weights: Weights, dims: Dimensions, hf_config: dict[str, Any]) -> DecoderWeights:
        """Llama's names for the parts of a decoder."""
        _require_swiglu(hf_config)
        embedding = weights.take("model.embed_tokens.weight", (dims.vocab_size, dims.hidden_size))
        # Some checkpoints with a tied head hold it a second time under its own name.
        own_head = not dims.tie_word_embeddings or "lm_head.weight" in weights
        head = _linear(weights, "lm_head", dims.vocab_size, dims.hidden_size) if own_head else None
        return DecoderWeights(
            embedding=embedding,
            layers=(_layer(weights, f"model.layers.{index}", dims) for index in range(dims.num_layers)),
            norm=weights.take("model.norm.weight", (dims.hidden_size,)),
            lm_head=head,
        )


def _layer(weights: Weights, name: str, dims: Dimensions) -> LayerWeights:
    query_size, kv_size = dims.num_heads * dims.head_dim, dims.num_kv_heads * dims.head_dim
    hidden, intermediate = dims.hidden_size, dims.intermediate_size
    return LayerWeights(
        input_norm=weights.take(f"{name}.input_layernorm.weight", (hidden,)),
        q_proj=_linear(weights, f"{name}.self_attn.q_proj", query_size, hidden),
        k_proj=_linear(weights, f"{name}.self_attn.k_proj", kv_size, hidden),
        v_proj=_linear(weights, f"{name}.self_attn.v_proj", kv_size, hidden),
        o_proj=_linear(weights, f"{name}.self_attn.o_proj", hidden, query_size),
        post_attention_norm=weights.take(f"{name}.post_attention_layernorm.weight", (hidden,)),
        gate_proj=_linear(weights, f"{name}.mlp.gate_proj", intermediate, hidden),
        up_proj=_linear(weights, f"{name}.mlp.up_proj", intermediate, hidden),
        down_proj=_linear(weights, f"{name}.mlp.down_proj", hidden, intermediate),
    )


def _linear(weights: Weights, name: str, out_features: int, in_features: int) -> LinearWeights:
    bias = f"{name}.bias"
    return LinearWeights(
        weight=weights.take(f"{name}.weight", (out_features, in_features)),
        bias=weights.take(bias, (out_features,)) if bias in weights else None,
    )


def _require_swiglu(hf_config: dict[str, Any]) -> None:
    activation = hf_config.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise ValueError(f"config.json: hidden_act {activation!r} is not supported; Llama models here have silu")
