"""A decoder computed by Paddle's own operators, layer by layer: runs wherever Paddle does."""

from __future__ import annotations

from collections.abc import Sequence

import paddle
import paddle.nn.functional as F  # noqa: N812 - Paddle's own spelling
from paddle import Tensor

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.model_executor.decoder_weights import DecoderWeights, LayerWeights, LinearWeights
from fastdeploy_lp.model_executor.forward_batch import ForwardBatch, ForwardBatchBuilder
from fastdeploy_lp.model_executor.kv_cache import LayerKVCache
from fastdeploy_lp.model_executor.layers.attention import Attention
from fastdeploy_lp.model_executor.layers.linear import Linear, merged
from fastdeploy_lp.model_executor.layers.norm import RMSNorm
from fastdeploy_lp.model_executor.layers.quantization import ACTIVATION_DIGITS, dequantized_weight
from fastdeploy_lp.model_executor.layers.rotary import RotaryEmbedding, RotaryTables
from fastdeploy_lp.model_executor.models.dimensions import Dimensions
from fastdeploy_lp.model_executor.sequence_chunk import SequenceChunk


class PaddleDecoder:
    """The weights as Paddle tensors and a KV cache a layer."""

    def __init__(self, fd_config: FDConfig, dims: Dimensions, tables: RotaryTables, weights: DecoderWeights) -> None:
        cache, digits = fd_config.cache_config, ACTIVATION_DIGITS[fd_config.model_config.quantization]
        self._batches = ForwardBatchBuilder(dims.num_heads, dims.num_kv_heads, cache.block_size)
        self._rotary = RotaryEmbedding(tables)
        embedding = dequantized_weight(weights.embedding) if digits else weights.embedding
        self._embedding = paddle.to_tensor(embedding)
        self._layers = []
        for layer in weights.layers:
            layer_cache = LayerKVCache(
                cache.num_blocks, dims.num_kv_heads, cache.block_size, dims.head_dim, half=cache.dtype == "float16"
            )
            self._layers.append(_Layer(layer, dims, self._rotary, layer_cache, digits=digits))
        self._norm = RMSNorm(weights.norm, dims.rms_norm_eps)
        self._lm_head = Linear(weights.lm_head or LinearWeights(weights.embedding), digits=digits)

    def forward(self, chunks: Sequence[SequenceChunk]) -> Tensor:
        """See `DecoderForCausalLM.forward`."""
        batch = self._batches.build(chunks)
        tables = self._rotary.tables(batch.positions)
        hidden, residual = paddle.gather(self._embedding, batch.token_ids), None
        for layer in self._layers:
            hidden, residual = layer(hidden, residual, batch, tables)
        # Only these rows are asked for; the rest of a prompt needs no final norm.
        rows = [paddle.gather(x, batch.output_rows) for x in (hidden, residual)]
        return self._norm(*rows)[0]

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """See `DecoderForCausalLM.compute_logits`."""
        return self._lm_head(hidden)


class _Layer:
    """Attention and feed-forward, each after a norm and added to the residual stream."""

    def __init__(
        self, weights: LayerWeights, dims: Dimensions, rotary: RotaryEmbedding, cache: LayerKVCache, *, digits: int
    ) -> None:
        self._head_dim = dims.head_dim
        self._rotary = rotary
        self._input_norm = RMSNorm(weights.input_norm, dims.rms_norm_eps)
        # Three products, not one: columns of a merged result would have to be copied out with a stride.
        self._q_proj, self._k_proj, self._v_proj = (
            Linear(part, digits=digits) for part in (weights.q_proj, weights.k_proj, weights.v_proj)
        )
        self._q_norm = None if weights.q_norm is None else RMSNorm(weights.q_norm, dims.rms_norm_eps)
        self._k_norm = None if weights.k_norm is None else RMSNorm(weights.k_norm, dims.rms_norm_eps)
        self._attention = Attention(dims.num_heads, dims.num_kv_heads, dims.head_dim, cache)
        self._o_proj = Linear(weights.o_proj, digits=digits)
        self._post_attention_norm = RMSNorm(weights.post_attention_norm, dims.rms_norm_eps)
        self._gate_up_proj = Linear(merged([weights.gate_proj, weights.up_proj]), digits=digits)
        self._down_proj = Linear(weights.down_proj, digits=digits)

    def __call__(
        self, hidden: Tensor, residual: Tensor | None, batch: ForwardBatch, tables: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        hidden, residual = self._input_norm(hidden, residual)
        hidden = self._attend(hidden, batch, tables)
        hidden, residual = self._post_attention_norm(hidden, residual)
        return self._down_proj(F.swiglu(self._gate_up_proj(hidden))), residual

    def _attend(self, hidden: Tensor, batch: ForwardBatch, tables: tuple[Tensor, Tensor]) -> Tensor:
        per_head = [hidden.shape[0], -1, self._head_dim]
        queries, keys = self._q_proj(hidden).reshape(per_head), self._k_proj(hidden).reshape(per_head)
        if self._q_norm is not None and self._k_norm is not None:
            queries, keys = self._q_norm(queries)[0], self._k_norm(keys)[0]
        queries, keys = self._rotary.rotate(queries, tables), self._rotary.rotate(keys, tables)
        return self._o_proj(self._attention(queries, keys, self._v_proj(hidden), batch))
