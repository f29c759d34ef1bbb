"""Attention of prompts that continue after a cached part: chunks of a long prompt, and shared prefixes.

`block_multihead_attention` has no kernel for them: its prompts see only themselves. Not yet run on a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import paddle
import paddle.nn.functional as F  # noqa: N812 - Paddle's own spelling
from paddle import Tensor

from fastdeploy_lp.model_executor.dimensions import Dimensions
from fastdeploy_lp.model_executor.layers.attention.block_arguments import BlockArguments
from fastdeploy_lp.model_executor.layers.rotary import RotaryEmbedding, RotaryTables

# Bytes of attention scores computed at a time: 4,096 tokens after 28,000 others would have 17 GB, of 32 heads.
SCORE_BYTES = 256 << 20


@dataclass(frozen=True)
class PrefixChunk:
    """`length` tokens from row `first_row` of the rest on, at positions from `start` on, made once for all layers.

    rotation: cos and sin [length, 1, head_dim]. cache_rows [length * kv_heads]: where keys and values go. blocks: the
    cache blocks of the whole context. ahead bool [length, start + length]: tokens that a query must not see.
    """

    first_row: int
    length: int
    start: int
    rotation: tuple[Tensor, Tensor]
    cache_rows: Tensor
    blocks: Tensor
    ahead: Tensor


class PrefixAttention:
    """Plain products over the gathered context of one sequence after the other; no index leaves the device."""

    heads = None

    def __init__(self, dims: Dimensions, rotary: RotaryTables, block_size: int) -> None:
        self._dims = dims
        self._block_size = block_size
        self._rotary = RotaryEmbedding(rotary)
        self._positions = paddle.arange(len(rotary.cos), dtype="int32")
        self._kv_heads = paddle.arange(dims.num_kv_heads, dtype="int32")

    def prepare(self, made: BlockArguments, arguments: dict[str, Tensor]) -> list[PrefixChunk]:
        """See `RestOfPass`."""
        found, row = [], 0
        for seq, chunk in enumerate(made.rest, start=made.layout.operator_seqs):
            length = len(chunk.token_ids)
            found.append(self._chunk(row, length, chunk.start, arguments["block_tables"][seq]))
            row += length
        return found

    def __call__(self, qkv: Tensor, keys: Tensor, values: Tensor, batch: Sequence[PrefixChunk]) -> Tensor:
        """See `RestOfPass`."""
        per_head = qkv.reshape([qkv.shape[0], -1, self._dims.head_dim])
        parts = [
            self._attend(per_head[chunk.first_row : chunk.first_row + chunk.length], keys, values, chunk)
            for chunk in batch
        ]
        return parts[0] if len(parts) == 1 else paddle.concat(parts)

    def _chunk(self, first_row: int, length: int, start: int, block_table: Tensor) -> PrefixChunk:
        """`block_table` int32 [blocks] names the sequence's blocks, and may be longer."""
        size, end = self._block_size, start + length
        context, positions = self._positions[:end], self._positions[start:end]
        blocks = paddle.gather(block_table, positions // size)
        rows = (blocks.unsqueeze(1) * self._dims.num_kv_heads + self._kv_heads) * size + (positions % size).unsqueeze(1)
        return PrefixChunk(
            first_row=first_row,
            length=length,
            start=start,
            rotation=self._rotary.tables(positions),
            cache_rows=rows.reshape([-1]),
            blocks=block_table[: -(-end // size)],
            ahead=context.unsqueeze(0) > positions.unsqueeze(1),
        )

    def _attend(self, qkv: Tensor, keys: Tensor, values: Tensor, chunk: PrefixChunk) -> Tensor:
        """Attended values [length, heads * head_dim] of the chunk's projections [length, heads + 2 kv_heads, head_dim].

        keys, values: the layer's cache [blocks, kv_heads, block_size, head_dim], which takes the chunk's own.
        """
        dims = self._dims
        new_queries, new_keys, new_values = qkv.split([dims.num_heads, dims.num_kv_heads, dims.num_kv_heads], axis=1)
        self._store(keys, self._rotated(new_keys, chunk), chunk)
        self._store(values, new_values, chunk)
        queries = self._rotated(new_queries, chunk) * dims.head_dim**-0.5
        context = self._context(keys, chunk), self._context(values, chunk)
        rows = max(1, SCORE_BYTES // (4 * dims.num_heads * (chunk.start + chunk.length)))
        pieces = [
            self._attended(queries[begin : begin + rows], *context, chunk.ahead[begin : begin + rows])
            for begin in range(0, chunk.length, rows)
        ]
        return pieces[0] if len(pieces) == 1 else paddle.concat(pieces)

    def _attended(self, queries: Tensor, keys: Tensor, values: Tensor, ahead: Tensor) -> Tensor:
        """Attended values [rows, heads * head_dim] of queries [rows, heads, head_dim].

        keys, values: [kv_heads, context, head_dim]. ahead: bool [rows, context].
        """
        rows, context = ahead.shape
        heads = queries.transpose([1, 0, 2]).reshape([self._dims.num_kv_heads, -1, self._dims.head_dim])
        scores = paddle.matmul(heads, keys, transpose_y=True).astype("float32")
        visible = paddle.zeros([rows, context], "float32")
        mask = paddle.where(ahead, paddle.full_like(visible, -float("inf")), visible)
        # The heads of a group, each with its tokens, are rows of one product.
        per_token = [self._dims.num_kv_heads, -1, rows, context]
        weights = F.softmax(scores.reshape(per_token) + mask).reshape(scores.shape).astype(values.dtype)
        out = paddle.matmul(weights, values).reshape([self._dims.num_heads, rows, self._dims.head_dim])
        return out.transpose([1, 0, 2]).reshape([rows, -1])

    def _rotated(self, x: Tensor, chunk: PrefixChunk) -> Tensor:
        return self._rotary.rotate(x.astype("float32"), chunk.rotation).astype(x.dtype)

    def _store(self, cache: Tensor, new: Tensor, chunk: PrefixChunk) -> None:
        head_dim = self._dims.head_dim
        # A tensor of the same memory, so that the cache itself is written.
        paddle.scatter_(cache.view([-1, head_dim]), chunk.cache_rows, new.reshape([-1, head_dim]))

    def _context(self, cache: Tensor, chunk: PrefixChunk) -> Tensor:
        """Returns the context [kv_heads, start + length, head_dim], without the rest of the last block."""
        gathered = paddle.gather(cache, chunk.blocks).transpose([1, 0, 2, 3])
        merged = gathered.reshape([self._dims.num_kv_heads, -1, self._dims.head_dim])
        return merged[:, : chunk.start + chunk.length]
