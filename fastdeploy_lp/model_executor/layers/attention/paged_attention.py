"""Causal attention over the paged KV cache, by Paddle's own operators."""

from __future__ import annotations

from dataclasses import dataclass

import paddle
import paddle.nn.functional as F  # noqa: N812 - Paddle's own spelling
from paddle import Tensor

from fastdeploy_lp.model_executor.forward_batch import AttentionGroup, ForwardBatch
from fastdeploy_lp.model_executor.kv_cache import LayerKVCache


@dataclass(frozen=True)
class HeadSizes:
    """Number of query heads, number of key-value heads, and elements of a key and of a value."""

    num_heads: int
    num_kv_heads: int
    key_dim: int
    value_dim: int


class PagedAttention:
    """Writes a pass's keys and values to the cache, then computes causal attention.

    scale: factor of the products of queries and keys. window: the number of tokens, itself included, that a token
    attends to; None for all before it.
    """

    def __init__(self, sizes: HeadSizes, scale: float, cache: LayerKVCache, window: int | None = None) -> None:
        self._sizes = sizes
        self._scale = scale
        self._cache = cache
        self._window = window

    def __call__(
        self, queries: Tensor, keys: Tensor, values: Tensor, batch: ForwardBatch, sinks: Tensor | None = None
    ) -> Tensor:
        """Returns the attended values [tokens, heads * value_dim].

        queries [tokens, heads, key_dim], keys and values [tokens, kv_heads, ...]. sinks [heads]: a score for each head
        that takes part in the softmax without a value.
        """
        sizes = self._sizes
        self._cache.write(batch.cache_rows, keys.reshape([-1, sizes.key_dim]), values.reshape([-1, sizes.value_dim]))
        queries = queries * self._scale
        outputs = [self._attend(queries, group, sinks) for group in batch.groups]
        return outputs[0] if len(outputs) == 1 else paddle.concat(outputs)

    def _attend(self, queries: Tensor, group: AttentionGroup, sinks: Tensor | None) -> Tensor:
        sizes = self._sizes
        num_tokens = group.num_seqs * group.query_len
        rows = queries[group.first_row : group.first_row + num_tokens].reshape([-1, sizes.key_dim])
        if group.to_heads is not None:
            rows = paddle.gather(rows, group.to_heads)
        per_kv_head = [group.num_seqs, sizes.num_kv_heads, -1]
        keys = paddle.gather(self._cache.keys, group.blocks).reshape([*per_kv_head, sizes.key_dim])
        values = paddle.gather(self._cache.values, group.blocks).reshape([*per_kv_head, sizes.value_dim])
        scores = paddle.matmul(rows.reshape([*per_kv_head, sizes.key_dim]), keys, transpose_y=True)
        out = paddle.matmul(self._weights(scores, group, sinks), values).reshape([-1, sizes.value_dim])
        if group.to_tokens is not None:
            out = paddle.gather(out, group.to_tokens)
        return out.reshape([num_tokens, sizes.num_heads * sizes.value_dim])

    def _weights(self, scores: Tensor, group: AttentionGroup, sinks: Tensor | None) -> Tensor:
        """Returns the softmax of scores [num_seqs, kv_heads, heads_per_kv_head * query_len, context]."""
        mask = group.mask if self._window is None else group.window_masks[self._window]
        per_query = [group.num_seqs, self._sizes.num_kv_heads, -1, group.query_len, scores.shape[-1]]
        masked = scores.reshape(per_query) + mask
        if sinks is None:
            return F.softmax(masked).reshape(scores.shape)
        sinks = sinks.reshape([1, self._sizes.num_kv_heads, -1, 1, 1])
        highest = paddle.maximum(masked.max(axis=-1, keepdim=True), sinks)
        powers = paddle.exp(masked - highest)
        return (powers / (powers.sum(axis=-1, keepdim=True) + paddle.exp(sinks - highest))).reshape(scores.shape)
