"""Phi-3 (Abdin et al., 2024): one matrix for queries, keys and values, one for both halves of the feed-forward part."""

from __future__ import annotations

from typing import Any

import numpy as np
from typing_extensions import override

from fastdeploy_lp.model_executor.decoder_weights import DecoderWeights, LinearWeights
from fastdeploy_lp.model_executor.loader.weights import Weights
from fastdeploy_lp.model_executor.models.decoder import DecoderForCausalLM
from fastdeploy_lp.model_executor.models.decoder_reader import DecoderReader
from fastdeploy_lp.model_executor.models.dimensions import Dimensions


class Phi3ForCausalLM(DecoderForCausalLM):
    """A dense Phi-3 decoder with its language-model head."""

    @classmethod
    @override
    def read_weights(cls, weights: Weights, dims: Dimensions, hf_config: dict[str, Any]) -> DecoderWeights:
        """Llama's names but for the two merged matrices; there are no biases."""
        return _Reader(weights, dims).decoder()


class _Reader(DecoderReader):
    def qkv(self, name: str) -> tuple[LinearWeights, LinearWeights, LinearWeights]:
        dims = self.dims
        merged = self.linear(f"{name}.qkv_proj", dims.query_size + 2 * dims.kv_size, dims.hidden_size)
        queries, keys, values = np.split(merged.weight, [dims.query_size, dims.query_size + dims.kv_size])
        return LinearWeights(queries), LinearWeights(keys), LinearWeights(values)

    def gate_up(self, name: str) -> tuple[LinearWeights, LinearWeights]:
        merged = self.linear(f"{name}.gate_up_proj", 2 * self.dims.intermediate_size, self.dims.hidden_size)
        gate, up = np.split(merged.weight, 2)
        return LinearWeights(gate), LinearWeights(up)
