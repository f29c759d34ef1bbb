"""Attention with Paddle's plain operators: runs wherever Paddle does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paddle import Tensor

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.model_executor.decoder_weights import LayerWeights
from fastdeploy_lp.model_executor.dimensions import Dimensions
from fastdeploy_lp.model_executor.forward_batch import ForwardBatch, ForwardBatchBuilder, SequenceChunk
from fastdeploy_lp.model_executor.kv_cache import LayerCopier, LayerKVCache
from fastdeploy_lp.model_executor.layers.attention.backend import AttentionBackend
from fastdeploy_lp.model_executor.layers.attention.paged_attention import HeadSizes, PagedAttention
from fastdeploy_lp.model_executor.layers.linear import Linear
from fastdeploy_lp.model_executor.layers.norm import RMSNorm
from fastdeploy_lp.model_executor.layers.quantization import precision_of
from fastdeploy_lp.model_executor.layers.rotary import RotaryEmbedding, RotaryTables


@dataclass(frozen=True)
class PaddleBatch(ForwardBatch):
    """A packed pass with cos and sin [tokens, 1, head_dim] of its positions, looked up once for every layer."""

    rotation: tuple[Tensor, Tensor]


class PaddleAttentionBackend(AttentionBackend):
    """Sequences with equally many new tokens form a group, whose keys are gathered from the cache for one product."""

    def __init__(self, fd_config: FDConfig, dims: Dimensions, rotary: RotaryTables) -> None:
        self._cache = fd_config.cache_config
        self._dims = dims
        self._precision = precision_of(fd_config)
        self._rotary = RotaryEmbedding(rotary)
        self._batches = ForwardBatchBuilder(dims.num_heads, dims.num_kv_heads, self._cache.block_size)
        self._layer_caches: list[LayerKVCache] = []

    def prepare(self, chunks: Sequence[SequenceChunk]) -> PaddleBatch:
        """Packed in ascending length, whatever the chunks' order."""
        batch = self._batches.build(chunks)
        return PaddleBatch(**vars(batch), rotation=self._rotary.tables(batch.positions))

    def layer(self, weights: LayerWeights) -> PaddleAttentionLayer:
        """As the interface says."""
        cache, dims = self._cache, self._dims
        layer_cache = LayerKVCache(dims.num_kv_heads, cache.block_size, dims.head_dim, half=cache.dtype == "float16")
        self._layer_caches.append(layer_cache)
        return PaddleAttentionLayer(weights, dims, self._rotary, layer_cache, precision=self._precision)

    def initialize_cache(self, num_blocks: int) -> None:
        """As the interface says."""
        for cache in self._layer_caches:
            cache.allocate(num_blocks)

    def block_copier(self) -> LayerCopier:
        """As the interface says."""
        return LayerCopier(self._layer_caches, self._dims.num_kv_heads)


class PaddleAttentionLayer:
    """Projections, head norms, rotary embedding, and attention with grouped query heads."""

    def __init__(
        self,
        weights: LayerWeights,
        dims: Dimensions,
        rotary: RotaryEmbedding,
        cache: LayerKVCache,
        *,
        precision: str | None,
    ) -> None:
        self._head_dim = dims.head_dim
        self._rotary = rotary
        # Three products, not one: columns of a merged result would have to be copied out with a stride.
        self._q_proj, self._k_proj, self._v_proj = (
            Linear(part, precision) for part in (weights.q_proj, weights.k_proj, weights.v_proj)
        )
        self._q_norm = None if weights.q_norm is None else RMSNorm(weights.q_norm, dims.rms_norm_eps)
        self._k_norm = None if weights.k_norm is None else RMSNorm(weights.k_norm, dims.rms_norm_eps)
        self._attention = PagedAttention(
            HeadSizes(dims.num_heads, dims.num_kv_heads, dims.head_dim, dims.head_dim), dims.head_dim**-0.5, cache
        )

    def __call__(self, hidden: Tensor, batch: PaddleBatch) -> Tensor:
        """As the interface says."""
        per_head = [hidden.shape[0], -1, self._head_dim]
        queries, keys = self._q_proj(hidden).reshape(per_head), self._k_proj(hidden).reshape(per_head)
        if self._q_norm is not None and self._k_norm is not None:
            queries, keys = self._q_norm(queries)[0], self._k_norm(keys)[0]
        queries, keys = (self._rotary.rotate(x, batch.rotation) for x in (queries, keys))
        return self._attention(queries, keys, self._v_proj(hidden), batch)
