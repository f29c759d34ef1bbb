"""Causal attention with grouped query heads over the paged KV cache."""

from __future__ import annotations

import paddle
import paddle.nn.functional as F  # noqa: N812 - Paddle's own spelling
from paddle import Tensor

from fastdeploy_lp.model_executor.forward_batch import AttentionGroup, ForwardBatch
from fastdeploy_lp.model_executor.kv_cache import LayerKVCache


class Attention:
    """Writes this pass's keys and values to the cache, then lets every token look at its own past."""

    def __init__(self, num_heads: int, num_kv_heads: int, head_dim: int, cache: LayerKVCache) -> None:
        self._num_heads = num_heads
        self._num_kv_heads = num_kv_heads
        self._head_dim = head_dim
        self._scale = head_dim**-0.5
        self._cache = cache

    def __call__(self, queries: Tensor, keys: Tensor, values: Tensor, batch: ForwardBatch) -> Tensor:
        """queries [tokens, heads, head_dim], keys and values [tokens, kv_heads, ...] → [tokens, heads * head_dim]."""
        head_dim = self._head_dim
        self._cache.write(batch.cache_rows, keys.reshape([-1, head_dim]), values.reshape([-1, head_dim]))
        queries = queries * self._scale
        outputs = [self._attend(queries, group) for group in batch.groups]
        return outputs[0] if len(outputs) == 1 else paddle.concat(outputs)

    def _attend(self, queries: Tensor, group: AttentionGroup) -> Tensor:
        num_tokens = group.num_seqs * group.query_len
        rows = queries[group.first_row : group.first_row + num_tokens].reshape([-1, self._head_dim])
        if group.to_heads is not None:
            rows = paddle.gather(rows, group.to_heads)
        per_kv_head = [group.num_seqs, self._num_kv_heads, -1, self._head_dim]
        keys = paddle.gather(self._cache.keys, group.blocks).reshape(per_kv_head)
        values = paddle.gather(self._cache.values, group.blocks).reshape(per_kv_head)
        scores = paddle.matmul(rows.reshape(per_kv_head), keys, transpose_y=True)
        per_query = [group.num_seqs, self._num_kv_heads, -1, group.query_len, scores.shape[-1]]
        weights = F.softmax(scores.reshape(per_query) + group.mask).reshape(scores.shape)
        out = paddle.matmul(weights, values).reshape([-1, self._head_dim])
        if group.to_tokens is not None:
            out = paddle.gather(out, group.to_tokens)
        return out.reshape([num_tokens, self._num_heads * self._head_dim])
