"""Attention by Paddle's own `block_multihead_attention`, which runs on GPUs only. Not yet run on a GPU.

The layout of the operator's inputs follows the sources of its kernels in Paddle 3.3; tests replace the operator with an
emulation of their index arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import paddle
from paddle import Tensor
from paddle.incubate.nn.functional import block_multihead_attention

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.model_executor.decoder_weights import LayerWeights
from fastdeploy_lp.model_executor.dimensions import Dimensions
from fastdeploy_lp.model_executor.forward_batch import SequenceChunk
from fastdeploy_lp.model_executor.layers.attention.backend import AttentionBackend
from fastdeploy_lp.model_executor.layers.attention.block_arguments import BlockArguments, BlockLayout, Int32Array
from fastdeploy_lp.model_executor.layers.attention.prefix_attention import PrefixAttention
from fastdeploy_lp.model_executor.layers.linear import linear, merged
from fastdeploy_lp.model_executor.layers.norm import RMSNorm
from fastdeploy_lp.model_executor.layers.quantization import precision_of
from fastdeploy_lp.model_executor.layers.rotary import RotaryTables
from fastdeploy_lp.model_executor.ops.cuda.attention_tiles import HeadShape
from fastdeploy_lp.platforms import current_platform, to_device

Operator = Callable[..., tuple[Tensor, ...]]


class RestOfPass(Protocol):
    """Attention of the chunks that the operator does not compute, which are the last ones of a pass.

    heads: None if the operator computes generating sequences.
    """

    @property
    def heads(self) -> HeadShape | None: ...

    def prepare(self, made: BlockArguments, arguments: dict[str, Tensor]) -> Any:
        """Prepares a pass, once for all layers; `arguments` are its integers on the device by name."""

    def __call__(self, qkv: Tensor, keys: Tensor, values: Tensor, batch: Any) -> Tensor:
        """Returns attended values [rows, heads * head_dim] of projections [rows, (heads + 2 kv_heads) * head_dim].

        keys, values: the layer's cache [blocks, kv_heads, block_size, head_dim], which takes the rows' own. batch: the
        result of `prepare`. The projections must not be used afterwards.
        """


@dataclass(frozen=True)
class BlockBatch:
    """A pass: its layout, the integers on the device by name, and its longest sequences as tensors in host memory.

    rest: what the attention of the rest has prepared.
    """

    layout: BlockLayout
    arguments: dict[str, Tensor]
    max_encoder_len: Tensor
    max_decoder_len: Tensor
    rest: Any

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
    `operator` has the signature of `block_multihead_attention`. Subclasses may compute more than continued prompts in
    another way.
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
        # Both halves of a head rotate by the same angles, so these are stored twice.
        tables = np.stack([np.tile(rotary.cos, 2), np.tile(rotary.sin, 2)])
        self._rope_emb = paddle.to_tensor(tables[:, None, :, None, :])
        self._rest = self._rest_of_pass(rotary)

    def _rest_of_pass(self, rotary: RotaryTables) -> RestOfPass:
        return PrefixAttention(self._dims, rotary, self._block_size)

    def prepare(self, chunks: Sequence[SequenceChunk]) -> BlockBatch:
        """As the interface says; one copy to the device."""
        made = BlockArguments.of(chunks, self._block_size, self._max_model_len, self._rest.heads)
        return self._batch(made, to_device(made.packed))

    def decode_batch(self, size: int) -> StaticDecodeBatch:
        """As the interface says."""
        made = BlockArguments.of_generation(size, self._block_size, self._max_model_len, self._rest.heads)
        device = current_platform().to_device(made.packed)
        batch = self._batch(made, device)
        return StaticDecodeBatch(**vars(batch), host=made.packed, device=device, block_size=self._block_size)

    def _batch(self, made: BlockArguments, packed: Tensor) -> BlockBatch:
        arguments = made.layout.views(packed)
        return BlockBatch(
            layout=made.layout,
            arguments=arguments,
            max_encoder_len=_in_host_memory(made.max_encoder_len),
            max_decoder_len=_in_host_memory(made.max_decoder_len),
            rest=self._rest.prepare(made, arguments),
        )

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
        layout = batch.layout
        ours = layout.operator_tokens
        # Attention that has every token needs no view of them.
        parts = [self._operate(qkv[:ours] if ours < layout.tokens else qkv, keys, values, batch)] if ours else []
        if ours < layout.tokens:
            parts.append(self._rest(qkv[ours:] if ours else qkv, keys, values, batch.rest))
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
            arguments["block_tables"][:seqs] if seqs < batch.layout.seqs else arguments["block_tables"],
            max_enc_len_this_time=batch.max_encoder_len,
            max_dec_len_this_time=batch.max_decoder_len,
            rope_emb=self._rope_emb,
            max_seq_len=self._max_model_len,
            block_size=self._block_size,
            use_neox_style=True,
        )[0]


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


@dataclass(frozen=True)
class StaticDecodeBatch(BlockBatch):
    """A pass of decoding sequences in tensors at fixed addresses: `host` int32 [layout.size] and `device`, its copy.

    A row without a sequence has a past of 0 tokens for the operator, a context of 0 tokens for our kernels, and is
    skipped: it reads and writes no block, and the row's result is meaningless.
    """

    host: Int32Array
    device: Tensor
    block_size: int

    @cached_property
    def _views(self) -> dict[str, Int32Array]:
        return self.layout.views(self.host)

    def fill(self, chunks: Sequence[SequenceChunk]) -> None:
        """Accepts at most `size` chunks of one token each after position 0; one copy to the device."""
        views, count = self._views, len(chunks)
        views["token_ids"][:count] = [chunk.token_ids[0] for chunk in chunks]
        # A context has the new token, too.
        lengths, own = (views["contexts"], 1) if self.layout.tiles else (views["seq_lens_decoder"][:, 0], 0)
        lengths[:count] = [chunk.start + own for chunk in chunks]
        lengths[count:] = 0
        for row, chunk in zip(views["block_tables"], chunks, strict=False):
            held = chunk.start // self.block_size + 1
            row[:held] = chunk.block_table[:held]
        current_platform().write(self.device, self.host)


def _in_host_memory(value: int) -> Tensor:
    return paddle.to_tensor(np.array([value], np.int32), place=paddle.CPUPlace())
