"""Attention by Paddle's own `block_multihead_attention`, which runs on GPUs only. Not yet run on a GPU.

The layout of the operator's inputs follows the sources of its kernels in Paddle 3.3; tests replace the operator with an
emulation of their index arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import paddle
from paddle import Tensor
from paddle.incubate.nn.functional import block_multihead_attention

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.model_executor.decoder_weights import LayerWeights
from fastdeploy_lp.model_executor.dimensions import Dimensions
from fastdeploy_lp.model_executor.forward_batch import SequenceChunk
from fastdeploy_lp.model_executor.layers.attention.backend import AttentionBackend
from fastdeploy_lp.model_executor.layers.attention.block_arguments import BlockArguments, BlockLayout, fill_lengths
from fastdeploy_lp.model_executor.layers.attention.prefix_attention import PrefixAttention, PrefixChunk
from fastdeploy_lp.model_executor.layers.linear import linear, merged
from fastdeploy_lp.model_executor.layers.norm import RMSNorm
from fastdeploy_lp.model_executor.layers.quantization import precision_of
from fastdeploy_lp.model_executor.layers.rotary import RotaryTables
from fastdeploy_lp.platforms import current_platform, to_device

Operator = Callable[..., tuple[Tensor, ...]]


@dataclass(frozen=True)
class BlockBatch:
    """A pass: its layout, the integers on the device by name, and its longest sequences as tensors in host memory."""

    layout: BlockLayout
    arguments: dict[str, Tensor]
    max_encoder_len: Tensor
    max_decoder_len: Tensor
    continued: list[PrefixChunk]

    @property
    def token_ids(self) -> Tensor:
        """int32 [tokens]."""
        return self.arguments["token_ids"]

    @property
    def output_rows(self) -> Tensor:
        """int32 [rows]."""
        return self.arguments["output_rows"]


class BlockAttentionBackend(AttentionBackend):
    """One fused operator for decoding sequences and new prompts; plain products for continued prompts.

    A layer's cache is [blocks, kv_heads, block_size, head_dim] for keys and for values, in the model's own type.
    `operator` has the signature of `block_multihead_attention`.
    """

    def __init__(
        self,
        fd_config: FDConfig,
        dims: Dimensions,
        rotary: RotaryTables,
        operator: Operator = block_multihead_attention,
    ) -> None:
        self._fd_config = fd_config
        self._dims = dims
        self._operator = operator
        self._block_size = fd_config.cache_config.block_size
        self._max_model_len = fd_config.model_config.max_model_len
        self._layers: list[BlockAttentionLayer] = []
        self._prefix = PrefixAttention(dims, rotary, self._block_size)
        # Both halves of a head rotate by the same angles, so these are stored twice.
        tables = np.stack([np.tile(rotary.cos, 2), np.tile(rotary.sin, 2)])
        self._rope_emb = paddle.to_tensor(tables[:, None, :, None, :])

    def prepare(self, chunks: Sequence[SequenceChunk]) -> BlockBatch:
        """As the interface says; one copy to the device."""
        made = BlockArguments.of(chunks, self._block_size, self._max_model_len)
        arguments = made.layout.views(to_device(made.packed))
        return BlockBatch(
            made.layout,
            arguments,
            _in_host_memory(made.max_encoder_len),
            _in_host_memory(made.max_decoder_len),
            self._prefix_chunks(made, arguments["block_tables"]),
        )

    def decode_batch(self, size: int) -> StaticDecodeBatch:
        """As the interface says."""
        return StaticDecodeBatch(size, self._block_size, self._max_model_len)

    def layer(self, weights: LayerWeights) -> BlockAttentionLayer:
        """As the interface says."""
        made = BlockAttentionLayer(self, weights, precision_of(self._fd_config))
        self._layers.append(made)
        return made

    def initialize_cache(self, num_blocks: int) -> None:
        """See the interface; a second call replaces the cache, which the memory-measuring pass relies on."""
        shape = [num_blocks, self._dims.num_kv_heads, self._block_size, self._dims.head_dim]
        platform = current_platform()
        for layer in self._layers:
            layer.cache = None
        for layer in self._layers:
            layer.cache = (platform.zeros(shape, platform.model_dtype), platform.zeros(shape, platform.model_dtype))

    def attend(self, qkv: Tensor, keys: Tensor, values: Tensor, batch: BlockBatch) -> Tensor:
        """Attended values [tokens, heads * head_dim] of projections [tokens, (heads + 2 kv_heads) * head_dim].

        Writes keys and values to the cache; the projections must not be used afterwards.
        """
        ours = batch.layout.operator_tokens
        # An operator that has every token needs no view of them.
        parts = [self._operate(qkv[:ours] if batch.continued else qkv, keys, values, batch)] if ours else []
        for chunk in batch.continued:
            rows = qkv[chunk.first_row : chunk.first_row + chunk.length]
            per_head = rows.reshape([chunk.length, -1, self._dims.head_dim])
            parts.append(self._prefix(per_head, keys, values, chunk))
        return parts[0] if len(parts) == 1 else paddle.concat(parts)

    @property
    def dims(self) -> Dimensions:
        """The model's sizes."""
        return self._dims

    def _operate(self, qkv: Tensor, keys: Tensor, values: Tensor, batch: BlockBatch) -> Tensor:
        arguments, seqs = batch.arguments, batch.layout.operator_seqs
        return self._operator(
            qkv,
            keys,
            values,
            arguments["seq_lens_encoder"],
            arguments["seq_lens_decoder"],
            arguments["seq_lens_this_time"],
            arguments["padding_offsets"],
            arguments["cum_offsets"],
            arguments["cu_seqlens"],
            arguments["cu_seqlens"],
            arguments["block_tables"][:seqs] if batch.continued else arguments["block_tables"],
            max_enc_len_this_time=batch.max_encoder_len,
            max_dec_len_this_time=batch.max_decoder_len,
            rope_emb=self._rope_emb,
            max_seq_len=self._max_model_len,
            block_size=self._block_size,
            use_neox_style=True,
        )[0]

    def _prefix_chunks(self, made: BlockArguments, block_tables: Tensor) -> list[PrefixChunk]:
        found, row = [], made.layout.operator_tokens
        for seq, chunk in enumerate(made.continued, start=made.layout.operator_seqs):
            length = len(chunk.token_ids)
            found.append(self._prefix.prepare(row, length, chunk.start, block_tables[seq]))
            row += length
        return found


class BlockAttentionLayer:
    """One product for queries, keys and values, head norms where the family has them, and a layer's cache."""

    def __init__(
        self,
        backend: BlockAttentionBackend,
        weights: LayerWeights,
        precision: str | None,
    ) -> None:
        self._backend = backend
        self.cache: tuple[Tensor, Tensor] | None = None
        self._qkv_proj = linear(merged([weights.q_proj, weights.k_proj, weights.v_proj]), precision)
        eps = backend.dims.rms_norm_eps
        self._q_norm = None if weights.q_norm is None else RMSNorm(weights.q_norm, eps)
        self._k_norm = None if weights.k_norm is None else RMSNorm(weights.k_norm, eps)

    def __call__(self, hidden: Tensor, batch: BlockBatch) -> Tensor:
        """As the interface says."""
        if self.cache is None:
            raise RuntimeError("attention runs before initialize_cache has made a cache for it")
        return self._backend.attend(self._normed(self._qkv_proj(hidden)), *self.cache, batch)

    def _normed(self, qkv: Tensor) -> Tensor:
        if self._q_norm is None or self._k_norm is None:
            return qkv
        dims = self._backend.dims
        per_head = qkv.reshape([qkv.shape[0], -1, dims.head_dim])
        queries, keys, values = per_head.split([dims.num_heads, dims.num_kv_heads, dims.num_kv_heads], axis=1)
        return paddle.concat([self._q_norm(queries)[0], self._k_norm(keys)[0], values], axis=1).reshape(qkv.shape)


class StaticDecodeBatch(BlockBatch):
    """At most `size` decoding sequences, in tensors at fixed addresses.

    A row without a sequence has a past of 0 tokens, so the operator skips it: it reads and writes no block, and the
    row's result is meaningless.
    """

    def __init__(self, size: int, block_size: int, max_model_len: int) -> None:
        width = -(-max_model_len // block_size)
        layout = BlockLayout(size, size, size, size, size, width)
        self._block_size = block_size
        self._host = np.zeros(layout.size, np.int32)
        self._views = layout.views(self._host)
        # New prompts have position 0, as rows without a sequence do: nothing but the pasts ever changes here.
        fill_lengths(self._views, np.zeros(size, np.int32), np.ones(size, np.int32), max_model_len)
        self._views["seq_lens_encoder"][:] = 0
        self._views["output_rows"][:] = np.arange(size)
        self._device = current_platform().to_device(self._host)
        # A graph keeps the number that it was recorded with; the operator reserves memory by it and computes by the
        # sequences' own lengths.
        longest = _in_host_memory(max_model_len - 1)
        super().__init__(layout, layout.views(self._device), _in_host_memory(0), longest, [])

    def fill(self, chunks: Sequence[SequenceChunk]) -> None:
        """Accepts at most `size` chunks of one token each after position 0; one copy to the device."""
        views, count = self._views, len(chunks)
        views["token_ids"][:count] = [chunk.token_ids[0] for chunk in chunks]
        views["seq_lens_decoder"][:count, 0] = [chunk.start for chunk in chunks]
        views["seq_lens_decoder"][count:] = 0
        for row, chunk in zip(views["block_tables"], chunks, strict=False):
            held = chunk.start // self._block_size + 1
            row[:held] = chunk.block_table[:held]
        current_platform().write(self._device, self._host)


def _in_host_memory(value: int) -> Tensor:
    return paddle.to_tensor(np.array([value], np.int32), place=paddle.CPUPlace())
