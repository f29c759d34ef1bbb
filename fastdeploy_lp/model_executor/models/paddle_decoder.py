"""A decoder computed by Paddle's own operators, layer by layer: runs wherever Paddle does."""

from __future__ import annotations

from collections.abc import Sequence

import paddle
import paddle.nn.functional as F  # noqa: N812 - Paddle's own spelling
from paddle import Tensor

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.model_executor.decoder_weights import DecoderWeights, LayerWeights, LinearWeights
from fastdeploy_lp.model_executor.layers.attention import (
    AttentionBackend,
    AttentionBatch,
    AttentionLayer,
    attention_backend,
)
from fastdeploy_lp.model_executor.layers.linear import Linear, merged
from fastdeploy_lp.model_executor.layers.norm import RMSNorm
from fastdeploy_lp.model_executor.layers.quantization import ACTIVATION_DIGITS, dequantized_weight
from fastdeploy_lp.model_executor.layers.rotary import RotaryTables
from fastdeploy_lp.model_executor.models.dimensions import Dimensions
from fastdeploy_lp.model_executor.sequence_chunk import SequenceChunk


class PaddleDecoder:
    """The weights as Paddle tensors; attention and its KV cache are the backend's, by default the platform's."""

    def __init__(
        self,
        fd_config: FDConfig,
        dims: Dimensions,
        tables: RotaryTables,
        weights: DecoderWeights,
        attention: AttentionBackend | None = None,
    ) -> None:
        digits = ACTIVATION_DIGITS[fd_config.model_config.quantization]
        self._attention = attention or attention_backend(fd_config, dims, tables)
        embedding = dequantized_weight(weights.embedding) if digits else weights.embedding
        self._embedding = paddle.to_tensor(embedding)
        self._layers = [_Layer(each, dims, self._attention.layer(each), digits=digits) for each in weights.layers]
        self._norm = RMSNorm(weights.norm, dims.rms_norm_eps)
        self._lm_head = Linear(weights.lm_head or LinearWeights(weights.embedding), digits=digits)

    def initialize_cache(self, num_blocks: int) -> None:
        """See `DecoderForCausalLM.initialize_cache`."""
        self._attention.initialize_cache(num_blocks)

    def forward(self, chunks: Sequence[SequenceChunk]) -> Tensor:
        """See `DecoderForCausalLM.forward`."""
        batch = self._attention.prepare(chunks)
        hidden, residual = paddle.gather(self._embedding, batch.token_ids), None
        for layer in self._layers:
            hidden, residual = layer(hidden, residual, batch)
        # Only these rows are asked for; the rest of a prompt needs no final norm.
        rows = [paddle.gather(x, batch.output_rows) for x in (hidden, residual)]
        return self._norm(*rows)[0]

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """See `DecoderForCausalLM.compute_logits`."""
        return self._lm_head(hidden)


class _Layer:
    """Attention and feed-forward, each after a norm and added to the residual stream."""

    def __init__(self, weights: LayerWeights, dims: Dimensions, attention: AttentionLayer, *, digits: int) -> None:
        self._input_norm = RMSNorm(weights.input_norm, dims.rms_norm_eps)
        self._attention = attention
        self._o_proj = Linear(weights.o_proj, digits=digits)
        self._post_attention_norm = RMSNorm(weights.post_attention_norm, dims.rms_norm_eps)
        self._gate_up_proj = Linear(merged([weights.gate_proj, weights.up_proj]), digits=digits)
        self._down_proj = Linear(weights.down_proj, digits=digits)

    def __call__(self, hidden: Tensor, residual: Tensor | None, batch: AttentionBatch) -> tuple[Tensor, Tensor]:
        hidden, residual = self._input_norm(hidden, residual)
        hidden = self._o_proj(self._attention(hidden, batch))
        hidden, residual = self._post_attention_norm(hidden, residual)
        return self._down_proj(F.swiglu(self._gate_up_proj(hidden))), residual
