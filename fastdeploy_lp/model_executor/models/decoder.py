"""The pre-norm decoder that dense families share, on whichever executor this machine has."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

from paddle import Tensor

from fastdeploy_lp.checkpoint.config_field import flag, positive_float, positive_int, texts
from fastdeploy_lp.checkpoint.errors import CheckpointError
from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.model_executor.block_copier import BlockCopier
from fastdeploy_lp.model_executor.decoder_weights import DecoderWeights, Matrix
from fastdeploy_lp.model_executor.dimensions import Dimensions
from fastdeploy_lp.model_executor.forward_batch import SequenceChunk
from fastdeploy_lp.model_executor.layers.quantization import BFLOAT16, precision_of
from fastdeploy_lp.model_executor.layers.rotary import RotaryTables
from fastdeploy_lp.model_executor.loader.stored_matrix import StoredMatrix
from fastdeploy_lp.model_executor.loader.weights import Weights
from fastdeploy_lp.model_executor.models.compiled_decoder import CompiledDecoder
from fastdeploy_lp.model_executor.models.paddle_decoder import PaddleDecoder
from fastdeploy_lp.model_executor.ops import compiled_ops
from fastdeploy_lp.model_executor.ops.packed_weight import WeightFormat

SWIGLU = ("silu", "swish")

logger = logging.getLogger(__name__)


def require_supported(hf_config: dict[str, Any], max_model_len: int) -> None:
    """Raise CheckpointError naming the field, unless the model is what `DecoderForCausalLM` computes.

    A sliding window is accepted if no context is longer than it.
    """
    activation = hf_config.get("hidden_act", "silu")
    if activation not in SWIGLU:
        raise CheckpointError(f"config.json: hidden_act {activation!r} is not supported; supported is silu")
    if hf_config.get("quantization_config"):
        raise CheckpointError("config.json: quantization_config is not supported; give weights that are not quantized")
    _require_whole_heads_rotated(hf_config)
    window = sliding_window(hf_config)
    if window is not None and window < max_model_len:
        raise CheckpointError(
            f"config.json: a sliding_window of {window} tokens is not supported for contexts of {max_model_len}; give "
            f"--max-model-len {window} or less"
        )


def sliding_window(hf_config: dict[str, Any]) -> int | None:
    """Returns the number of tokens, itself included, that a token attends to; None for all before it.

    Raises CheckpointError for layers that are no attention over the context.
    """
    kinds = texts(hf_config, "layer_types")
    for kind in kinds:
        if kind not in ("full_attention", "sliding_attention"):
            raise CheckpointError(f"config.json: layer_types has {kind!r}, which is not supported")
    slides = not kinds or "sliding_attention" in kinds
    if not slides or hf_config.get("sliding_window") is None:
        return None
    return positive_int(hf_config, "sliding_window") if flag(hf_config, "use_sliding_window", default=True) else None


def _require_whole_heads_rotated(hf_config: dict[str, Any]) -> None:
    for place in (hf_config, hf_config.get("rope_parameters")):
        if isinstance(place, dict) and positive_float(place, "partial_rotary_factor", 1.0) != 1.0:
            share = place["partial_rotary_factor"]
            raise CheckpointError(f"config.json: partial_rotary_factor {share} is not supported; supported is 1")


def _log_rounding(embedding: Matrix) -> None:
    if isinstance(embedding, StoredMatrix) and embedding.tensor.dtype != "BF16":
        logger.info("dtype bfloat16: the checkpoint's weights are rounded; they are %s", embedding.tensor.dtype)


class Executor(Protocol):
    """Computes a decoder's passes."""

    def block_copier(self) -> BlockCopier | None:
        """See `DecoderForCausalLM.block_copier`."""

    def initialize_cache(self, num_blocks: int) -> None:
        """See `DecoderForCausalLM.initialize_cache`."""

    def forward(self, chunks: Sequence[SequenceChunk]) -> Tensor:
        """See `DecoderForCausalLM.forward`."""

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """See `DecoderForCausalLM.compute_logits`."""


class DecoderForCausalLM(ABC):
    """RMS norms, grouped-query attention with rotary embedding, SwiGLU, and a language-model head.

    A family says under which names its checkpoints hold the parts. The compiled operators compute where they can be
    had, Paddle's own elsewhere; both round and quantize alike.
    """

    def __init__(self, fd_config: FDConfig, weights: Weights) -> None:
        config = fd_config.model_config
        require_supported(config.hf_config, config.max_model_len)
        dims = Dimensions.from_hf_config(config.hf_config)
        rotary = RotaryTables.of(config.hf_config, dims.head_dim, config.max_model_len)
        parts = self.read_weights(weights, dims, config.hf_config)
        communicator = weights.communicator
        if precision_of(fd_config) == BFLOAT16 and communicator.rank == 0:
            _log_rounding(parts.embedding)
        # The compiled operators compute a whole pass at once, with nothing between a layer's halves.
        ops = compiled_ops() if communicator.size == 1 else None
        self._executor: Executor = (
            PaddleDecoder(fd_config, dims.part_of_rank(communicator.size), rotary, parts, communicator=communicator)
            if ops is None
            else CompiledDecoder(ops, fd_config, dims, rotary, parts)
        )

    @classmethod
    @abstractmethod
    def read_weights(cls, weights: Weights, dims: Dimensions, hf_config: dict[str, Any]) -> DecoderWeights:
        """The parts of the decoder, under this family's names in the checkpoint.

        Raises WeightsError (a ValueError) naming a tensor, or CheckpointError naming a field of `config.json`.
        """

    @property
    def weight_formats(self) -> list[WeightFormat]:
        """Of each matrix product of a pass, the head last; empty where Paddle's operators compute."""
        return self._executor.weight_formats if isinstance(self._executor, CompiledDecoder) else []

    def initialize_cache(self, num_blocks: int) -> None:
        """Allocate the KV cache: `num_blocks` blocks, the null block 0 included, in place of a cache that is there."""
        self._executor.initialize_cache(num_blocks)

    def block_copier(self) -> BlockCopier | None:
        """See `CopiesBlocks`; None if the attention backend copies no blocks."""
        return self._executor.block_copier()

    def warm_up(self, max_num_seqs: int) -> None:
        """Prepare passes of up to `max_num_seqs` sequences that generate; once, the cache being there."""
        if isinstance(self._executor, PaddleDecoder):
            self._executor.record_decode(max_num_seqs)

    def forward(self, chunks: Sequence[SequenceChunk]) -> Tensor:
        """The final hidden states [rows, hidden_size] that the chunks ask for, in the order of the chunks.

        Writes the chunks' keys and values to the cache.
        """
        return self._executor.forward(chunks)

    @property
    def computes_ahead(self) -> bool:
        """True where Paddle's operators compute: the compiled ones run on the host itself."""
        return isinstance(self._executor, PaddleDecoder)

    def forward_ahead(self, chunks: Sequence[SequenceChunk], token_ids: Tensor) -> Tensor:
        """See `ComputesAhead`; raises RuntimeError where the compiled operators compute."""
        if not isinstance(self._executor, PaddleDecoder):
            raise RuntimeError("the compiled operators compute nothing ahead")
        return self._executor.forward_ahead(chunks, token_ids)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Logits [rows, vocab_size] of hidden states [rows, hidden_size], in a tensor that the chain may overwrite."""
        return self._executor.compute_logits(hidden)
