"""The dense models of ERNIE 4.5 (Baidu, 2025)."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from fastdeploy_lp.checkpoint.config_field import flag
from fastdeploy_lp.checkpoint.rope_order import undo_rope_interleaving
from fastdeploy_lp.model_executor.decoder_weights import DecoderWeights, LinearWeights
from fastdeploy_lp.model_executor.dimensions import Dimensions
from fastdeploy_lp.model_executor.loader.weights import Weights
from fastdeploy_lp.model_executor.models.decoder import DecoderForCausalLM
from fastdeploy_lp.model_executor.models.decoder_reader import DecoderReader


class Ernie4_5ForCausalLM(DecoderForCausalLM):  # noqa: N801 - the architecture's own name
    """A dense ERNIE 4.5 decoder with its language-model head; biases everywhere where config.json says `use_bias`."""

    @classmethod
    def read_weights(cls, weights: Weights, dims: Dimensions, hf_config: dict[str, Any]) -> DecoderWeights:
        """The head is tied unless config.json says that it is not."""
        tied = flag(hf_config, "tie_word_embeddings", default=True)
        dims, bias = dataclasses.replace(dims, tie_word_embeddings=tied), flag(hf_config, "use_bias")
        return _Reader(weights, dims, qkv_bias=bias, o_bias=bias, mlp_bias=bias).decoder()


class _Reader(DecoderReader):
    """ERNIE rotates pairs of neighbours; our executors rotate halves."""

    def qkv(self, name: str) -> tuple[LinearWeights, LinearWeights, LinearWeights]:
        queries, keys, values = super().qkv(name)
        head_dim = self.dims.head_dim
        return _halves(queries, head_dim), _halves(keys, head_dim), values


def _halves(linear: LinearWeights, head_dim: int) -> LinearWeights:
    rows = len(linear.weight)
    order = undo_rope_interleaving(np.arange(rows), rows // head_dim)
    return LinearWeights(linear.weight[order], None if linear.bias is None else linear.bias[order])
