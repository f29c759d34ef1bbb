"""Phi-3 (Abdin et al., 2024): one matrix for queries, keys and values, one for both halves of the feed-forward part."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from typing_extensions import override

from fastdeploy_lp.model_executor.decoder_weights import DecoderWeights, LinearWeights
from fastdeploy_lp.model_executor.dimensions import Dimensions
from fastdeploy_lp.model_executor.loader.split import Section, Split
from fastdeploy_lp.model_executor.loader.weights import Weights
from fastdeploy_lp.model_executor.models.decoder import DecoderForCausalLM
from fastdeploy_lp.model_executor.models.decoder_reader import DecoderReader


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
        kv = Section(dims.kv_size, dims.num_kv_heads)
        split = Split(0, (Section(dims.query_size), kv, kv))
        merged = self.linear(f"{name}.qkv_proj", dims.query_size + 2 * dims.kv_size, dims.hidden_size, split=split)
        local = dims.part_of_rank(self.weights.communicator.size)
        ends = (0, local.query_size, local.query_size + local.kv_size, local.query_size + 2 * local.kv_size)
        queries, keys, values = (LinearWeights(merged.weight[begin:end]) for begin, end in pairwise(ends))
        return queries, keys, values

    def gate_up(self, name: str) -> tuple[LinearWeights, LinearWeights]:
        inner = self.dims.intermediate_size
        merged = self.linear(
            f"{name}.gate_up_proj", 2 * inner, self.dims.hidden_size, split=Split(0, (Section(inner), Section(inner)))
        )
        half = len(merged.weight) // 2
        return LinearWeights(merged.weight[:half]), LinearWeights(merged.weight[half:])
