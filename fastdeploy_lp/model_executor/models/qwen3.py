"""Qwen3 (Yang et al., 2025): queries and keys are normalized head by head."""

from __future__ import annotations

from typing import Any

from fastdeploy_lp.checkpoint.config_field import flag
from fastdeploy_lp.model_executor.decoder_weights import DecoderWeights
from fastdeploy_lp.model_executor.dimensions import Dimensions
from fastdeploy_lp.model_executor.loader.weights import Weights
from fastdeploy_lp.model_executor.models.decoder import DecoderForCausalLM
from fastdeploy_lp.model_executor.models.decoder_reader import DecoderReader


class Qwen3ForCausalLM(DecoderForCausalLM):
    """A dense Qwen3 decoder with its language-model head."""

    @classmethod
    def read_weights(cls, weights: Weights, dims: Dimensions, hf_config: dict[str, Any]) -> DecoderWeights:
        """Norms of heads always, biases of the attention where config.json says so."""
        bias = flag(hf_config, "attention_bias")
        return DecoderReader(weights, dims, qkv_bias=bias, o_bias=bias, qk_norm=True).decoder()
