"""An attention backend that computes one sequence after the other: slow, but short and readable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import paddle
import paddle.nn.functional as F  # noqa: N812 - Paddle's own spelling

from fastdeploy_lp import FDConfig
from fastdeploy_lp.model_executor.decoder_weights import LayerWeights
from fastdeploy_lp.model_executor.forward_batch import SequenceChunk
from fastdeploy_lp.model_executor.layers.attention import AttentionBackend
from fastdeploy_lp.model_executor.layers.linear import Linear
from fastdeploy_lp.model_executor.layers.norm import RMSNorm
from fastdeploy_lp.model_executor.layers.rotary import RotaryEmbedding, RotaryTables
from fastdeploy_lp.model_executor.models.dimensions import Dimensions


@dataclass(frozen=True)
class LoopBatch:
    """Chunks packed in their given order.

    spans: for each chunk its first and last row of the packed tokens. written: the rows of the cache [n] for its
    tokens. context: the cache rows of all tokens of its sequence so far.
    """

    token_ids: paddle.Tensor
    output_rows: paddle.Tensor
    rotation: tuple[paddle.Tensor, paddle.Tensor]
    spans: list[tuple[int, int]]
    written: list[paddle.Tensor]
    context: list[paddle.Tensor]


class LoopAttentionBackend(AttentionBackend):
    """Keys and values have shape [num_blocks * block_size, kv_heads, head_dim] in each layer."""

    def __init__(self, fd_config: FDConfig, dims: Dimensions, rotary: RotaryTables) -> None:
        self._block_size = fd_config.cache_config.block_size
        self._dims = dims
        self._rotary = RotaryEmbedding(rotary)
        self._layers: list[LoopAttentionLayer] = []

    def prepare(self, chunks: Sequence[SequenceChunk]) -> LoopBatch:
        """Computes the positions of each chunk's tokens in the packed batch and in the cache."""
        ends = np.cumsum([len(chunk.token_ids) for chunk in chunks]).tolist()
        starts = [end - len(chunk.token_ids) for chunk, end in zip(chunks, ends, strict=True)]
        context = [self._cache_rows(chunk) for chunk in chunks]
        asked = [np.arange(end - chunk.num_outputs, end) for chunk, end in zip(chunks, ends, strict=True)]
        positions = [np.arange(chunk.start, chunk.start + len(chunk.token_ids)) for chunk in chunks]
        return LoopBatch(
            token_ids=paddle.to_tensor(np.concatenate([chunk.token_ids for chunk in chunks])),
            output_rows=paddle.to_tensor(np.concatenate(asked)),
            rotation=self._rotary.tables(paddle.to_tensor(np.concatenate(positions))),
            spans=list(zip(starts, ends, strict=True)),
            written=[paddle.to_tensor(rows[chunk.start :]) for rows, chunk in zip(context, chunks, strict=True)],
            context=[paddle.to_tensor(rows) for rows in context],
        )

    def layer(self, weights: LayerWeights) -> LoopAttentionLayer:
        """Creates the next layer's attention."""
        self._layers.append(LoopAttentionLayer(weights, self._dims, self._rotary))
        return self._layers[-1]

    def initialize_cache(self, num_blocks: int) -> None:
        """Allocates the cache of every layer."""
        for layer in self._layers:
            layer.allocate(num_blocks * self._block_size)

    def _cache_rows(self, chunk: SequenceChunk) -> np.ndarray:
        """Returns the cache row of every token of the sequence up to the chunk's last one."""
        positions = np.arange(chunk.start + len(chunk.token_ids))
        blocks = np.asarray(chunk.block_table)[positions // self._block_size]
        return blocks.astype(np.int64) * self._block_size + positions % self._block_size


class LoopAttentionLayer:
    """One layer's projections, and its keys and values."""

    def __init__(self, weights: LayerWeights, dims: Dimensions, rotary: RotaryEmbedding) -> None:
        self._dims = dims
        self._rotary = rotary
        self._q_proj, self._k_proj, self._v_proj = map(Linear, (weights.q_proj, weights.k_proj, weights.v_proj))
        self._q_norm = None if weights.q_norm is None else RMSNorm(weights.q_norm, dims.rms_norm_eps)
        self._k_norm = None if weights.k_norm is None else RMSNorm(weights.k_norm, dims.rms_norm_eps)

    def allocate(self, num_rows: int) -> None:
        """Allocates the cache for this many tokens."""
        shape = [num_rows, self._dims.num_kv_heads, self._dims.head_dim]
        self._keys, self._values = paddle.zeros(shape), paddle.zeros(shape)

    def __call__(self, hidden: paddle.Tensor, batch: LoopBatch) -> paddle.Tensor:
        """Normed hidden states [tokens, hidden_size] to attended values [tokens, heads * head_dim]."""
        per_head = [hidden.shape[0], -1, self._dims.head_dim]
        queries, keys, values = (
            project(hidden).reshape(per_head) for project in (self._q_proj, self._k_proj, self._v_proj)
        )
        if self._q_norm is not None and self._k_norm is not None:
            queries, keys = self._q_norm(queries)[0], self._k_norm(keys)[0]
        queries, keys = self._rotary.rotate(queries, batch.rotation), self._rotary.rotate(keys, batch.rotation)
        outputs = []
        for (start, end), written, context in zip(batch.spans, batch.written, batch.context, strict=True):
            paddle.scatter_(self._keys, written, keys[start:end])
            paddle.scatter_(self._values, written, values[start:end])
            outputs.append(self._attend(queries[start:end], context))
        return paddle.concat(outputs)

    def _attend(self, queries: paddle.Tensor, context: paddle.Tensor) -> paddle.Tensor:
        """The last tokens' queries [n, heads, head_dim] over all tokens of their sequence [context]."""
        shared = self._dims.num_heads // self._dims.num_kv_heads
        keys, values = (
            paddle.gather(cache, context).repeat_interleave(shared, axis=1).transpose([1, 0, 2])
            for cache in (self._keys, self._values)
        )
        scores = paddle.matmul(queries.transpose([1, 0, 2]), keys, transpose_y=True) * self._dims.head_dim**-0.5
        count, length = scores.shape[1:]
        future = paddle.triu(paddle.full([count, length], -np.inf), length - count + 1)
        attended = paddle.matmul(F.softmax(scores + future), values)
        return attended.transpose([1, 0, 2]).reshape([count, -1])
