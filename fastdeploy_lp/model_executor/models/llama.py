"""The Llama family (Touvron et al., 2023); SmolLM2 is one of it."""

from __future__ import annotations

from typing import Any

from fastdeploy_lp.checkpoint.config_field import flag
from fastdeploy_lp.model_executor.decoder_weights import DecoderWeights
from fastdeploy_lp.model_executor.dimensions import Dimensions
from fastdeploy_lp.model_executor.loader.weights import Weights
from fastdeploy_lp.model_executor.models.decoder import DecoderForCausalLM
from fastdeploy_lp.model_executor.models.decoder_reader import DecoderReader


class LlamaForCausalLM(DecoderForCausalLM):
    """A Llama decoder with its language-model head; biases where config.json says so."""

    @classmethod
    def read_weights(cls, weights: Weights, dims: Dimensions, hf_config: dict[str, Any]) -> DecoderWeights:
        """Llama uses the names of `DecoderReader`."""
        bias = flag(hf_config, "attention_bias")
        return DecoderReader(weights, dims, qkv_bias=bias, o_bias=bias, mlp_bias=flag(hf_config, "mlp_bias")).decoder()
