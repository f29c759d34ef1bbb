"""Qwen2 and Qwen2.5 (Yang et al., 2024): Llama with biases on queries, keys and values."""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from fastdeploy_lp.model_executor.decoder_weights import DecoderWeights
from fastdeploy_lp.model_executor.dimensions import Dimensions
from fastdeploy_lp.model_executor.loader.weights import Weights
from fastdeploy_lp.model_executor.models.decoder import DecoderForCausalLM
from fastdeploy_lp.model_executor.models.decoder_reader import DecoderReader


class Qwen2ForCausalLM(DecoderForCausalLM):
    """A dense Qwen2 or Qwen2.5 decoder with its language-model head."""

    @classmethod
    @override
    def read_weights(cls, weights: Weights, dims: Dimensions, hf_config: dict[str, Any]) -> DecoderWeights:
        """The three biases are no choice of config.json."""
        return DecoderReader(weights, dims, qkv_bias=True).decoder()
