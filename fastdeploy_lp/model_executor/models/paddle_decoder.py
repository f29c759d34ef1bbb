"""A decoder computed by Paddle's own operators, layer by layer: runs wherever Paddle does."""

from __future__ import annotations

from collections.abc import Sequence

import paddle
import paddle.nn.functional as F  # noqa: N812 - Paddle's own spelling
from paddle import Tensor

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.model_executor.block_copier import BlockCopier
from fastdeploy_lp.model_executor.decode_graphs import Capture, DecodeGraphs, bucket_sizes, write_tokens
from fastdeploy_lp.model_executor.decoder_weights import DecoderWeights, LayerWeights
from fastdeploy_lp.model_executor.dimensions import Dimensions
from fastdeploy_lp.model_executor.forward_batch import SequenceChunk
from fastdeploy_lp.model_executor.layers.attention import (
    AttentionBackend,
    AttentionBatch,
    AttentionLayer,
    attention_backend,
)
from fastdeploy_lp.model_executor.layers.linear import linear, merged
from fastdeploy_lp.model_executor.layers.norm import RMSNorm
from fastdeploy_lp.model_executor.layers.parallel import row_parallel, vocab_layers
from fastdeploy_lp.model_executor.layers.quantization import precision_of
from fastdeploy_lp.model_executor.layers.rotary import RotaryTables
from fastdeploy_lp.model_executor.parallel.communicator import SINGLE_RANK, Communicator
from fastdeploy_lp.platforms import current_platform


class PaddleDecoder:
    """The weights as Paddle tensors; attention and its KV cache are the backend's, by default the platform's.

    communicator: the ranks that share the model. Then `dims` and the weights describe this rank's part.
    """

    def __init__(
        self,
        fd_config: FDConfig,
        dims: Dimensions,
        tables: RotaryTables,
        weights: DecoderWeights,
        attention: AttentionBackend | None = None,
        *,
        communicator: Communicator = SINGLE_RANK,
    ) -> None:
        precision = precision_of(fd_config)
        self._attention = attention or attention_backend(fd_config, dims, tables)
        self._embedding, self._lm_head = vocab_layers(
            weights.embedding, weights.lm_head, precision, dims.vocab_size, communicator
        )
        self._layers = [
            _Layer(each, dims, self._attention.layer(each), precision, communicator) for each in weights.layers
        ]
        self._norm = RMSNorm(weights.norm, dims.rms_norm_eps)
        self._decode_graphs: DecodeGraphs | None = None
        self._records = fd_config.device_config.cuda_graphs

    def record_decode(self, max_num_seqs: int, capture: Capture | None = None) -> None:
        """Record passes of up to `max_num_seqs` sequences that generate, if device and configuration allow it.

        To be called once, before the first pass; `capture` is the platform's unless it is given.
        """
        if not self._records:
            return
        capture = capture or current_platform().capture
        sizes = bucket_sizes(max_num_seqs)
        self._decode_graphs = DecodeGraphs.record(sizes, self._attention, self._compute, capture)

    def initialize_cache(self, num_blocks: int) -> None:
        """See `DecoderForCausalLM.initialize_cache`."""
        self._attention.initialize_cache(num_blocks)

    def block_copier(self) -> BlockCopier | None:
        """See `DecoderForCausalLM.block_copier`."""
        return self._attention.block_copier()

    def forward(self, chunks: Sequence[SequenceChunk]) -> Tensor:
        """See `DecoderForCausalLM.forward`."""
        graphs = self._decode_graphs
        if graphs is not None and graphs.takes(chunks):
            return graphs(chunks)
        return self._compute(self._attention.prepare(chunks))

    def forward_ahead(self, chunks: Sequence[SequenceChunk], token_ids: Tensor) -> Tensor:
        """See `ComputesAhead`."""
        graphs = self._decode_graphs
        if graphs is not None and graphs.takes(chunks):
            return graphs(chunks, token_ids)
        batch = self._attention.prepare(chunks)
        write_tokens(batch, token_ids)
        return self._compute(batch)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """See `DecoderForCausalLM.compute_logits`."""
        return _as(self._lm_head(_as(hidden, current_platform().model_dtype)), "float32")

    def _compute(self, batch: AttentionBatch) -> Tensor:
        hidden, residual = self._embedding(batch.token_ids), None
        for layer in self._layers:
            hidden, residual = layer(hidden, residual, batch)
        # Only these rows are asked for; the rest of a prompt needs no final norm.
        rows = [paddle.gather(x, batch.output_rows) for x in (hidden, residual)]
        return _as(self._norm(*rows)[0], "float32")


class _Layer:
    """Attention and feed-forward, each after a norm and added to the residual stream."""

    def __init__(
        self,
        weights: LayerWeights,
        dims: Dimensions,
        attention: AttentionLayer,
        precision: str | None,
        communicator: Communicator,
    ) -> None:
        self._input_norm = RMSNorm(weights.input_norm, dims.rms_norm_eps)
        self._attention = attention
        self._o_proj = row_parallel(weights.o_proj, precision, communicator)
        self._post_attention_norm = RMSNorm(weights.post_attention_norm, dims.rms_norm_eps)
        self._gate_up_proj = linear(merged([weights.gate_proj, weights.up_proj]), precision)
        self._down_proj = row_parallel(weights.down_proj, precision, communicator)

    def __call__(self, hidden: Tensor, residual: Tensor | None, batch: AttentionBatch) -> tuple[Tensor, Tensor]:
        hidden, residual = self._input_norm(hidden, residual)
        hidden = self._o_proj(self._attention(hidden, batch))
        hidden, residual = self._post_attention_norm(hidden, residual)
        return self._down_proj(F.swiglu(self._gate_up_proj(hidden))), residual


def _as(x: Tensor, dtype: str) -> Tensor:
    """The tensor in this element type: hidden states and logits leave in single precision, whatever computed them."""
    return x if x.dtype == getattr(paddle, dtype) else x.astype(dtype)
