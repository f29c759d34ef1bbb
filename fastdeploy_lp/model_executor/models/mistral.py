"""Mistral (Jiang et al., 2023): Llama's layers, over a context that its attention window holds."""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from fastdeploy_lp.model_executor.decoder_weights import DecoderWeights
from fastdeploy_lp.model_executor.dimensions import Dimensions
from fastdeploy_lp.model_executor.loader.weights import Weights
from fastdeploy_lp.model_executor.models.decoder import DecoderForCausalLM
from fastdeploy_lp.model_executor.models.decoder_reader import DecoderReader


class MistralForCausalLM(DecoderForCausalLM):
    """A dense Mistral decoder with its language-model head."""

    @classmethod
    @override
    def read_weights(cls, weights: Weights, dims: Dimensions, hf_config: dict[str, Any]) -> DecoderWeights:
        """Llama's names, without biases."""
        return DecoderReader(weights, dims).decoder()
