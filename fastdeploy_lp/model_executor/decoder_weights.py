"""The weights of a pre-norm decoder under names that do not depend on the model family."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fastdeploy_lp.model_executor.loader.stored_matrix import FloatArray, Matrix, floats

__all__ = ["DecoderWeights", "FloatArray", "LayerWeights", "LinearWeights", "Matrix", "floats"]


@dataclass(frozen=True)
class LinearWeights:
    """`weight` [out_features, in_features] and, if the checkpoint has one, `bias` [out_features]."""

    weight: Matrix
    bias: FloatArray | None = None


@dataclass(frozen=True)
class LayerWeights:
    """One decoder layer: attention and SwiGLU feed-forward, each after an RMS norm.

    `q_norm` and `k_norm` [head_dim] are for families that normalize queries and keys head by head.
    """

    input_norm: FloatArray
    q_proj: LinearWeights
    k_proj: LinearWeights
    v_proj: LinearWeights
    o_proj: LinearWeights
    post_attention_norm: FloatArray
    gate_proj: LinearWeights
    up_proj: LinearWeights
    down_proj: LinearWeights
    q_norm: FloatArray | None = None
    k_norm: FloatArray | None = None


@dataclass(frozen=True)
class DecoderWeights:
    """A whole decoder. `layers` are read from the checkpoint as they are iterated over, once.

    `embedding` is [vocab_size, hidden_size]; `lm_head` is None when the embedding is the head as well.
    """

    embedding: Matrix
    layers: Iterable[LayerWeights]
    norm: FloatArray
    lm_head: LinearWeights | None
