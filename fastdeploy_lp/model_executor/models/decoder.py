"""The pre-norm decoder that dense families share, and its executor on the compiled operators."""

from __future__ import annotations

import ctypes
import logging
import weakref
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle import Tensor

from fastdeploy_lp.checkpoint.config_field import flag, positive_float, positive_int, texts
from fastdeploy_lp.checkpoint.errors import CheckpointError
from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.model_executor.block_copier import BlockCopier
from fastdeploy_lp.model_executor.decoder_weights import DecoderWeights, LayerWeights, LinearWeights, Matrix
from fastdeploy_lp.model_executor.dimensions import Dimensions
from fastdeploy_lp.model_executor.forward_batch import IntArray, SequenceChunk
from fastdeploy_lp.model_executor.layers.linear import merged_bias
from fastdeploy_lp.model_executor.layers.quantization import ACTIVATION_DIGITS, BFLOAT16, precision_of
from fastdeploy_lp.model_executor.layers.rotary import RotaryTables
from fastdeploy_lp.model_executor.loader.stored_matrix import StoredMatrix
from fastdeploy_lp.model_executor.loader.weights import Weights
from fastdeploy_lp.model_executor.models.paddle_decoder import PaddleDecoder
from fastdeploy_lp.model_executor.ops import compiled_ops
from fastdeploy_lp.model_executor.ops.packed_weight import NO_ROW, PackedWeight, WeightFormat, section_structs
from fastdeploy_lp.model_executor.ops.structs import BatchStruct, CacheStruct, LayerStruct, LinearStruct, ModelStruct
from fastdeploy_lp.platforms.cpu import mapped_zeros

Int32Array = NDArray[np.int32]
SWIGLU = ("silu", "swish")
LANES = 16

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


@dataclass(frozen=True)
class PackedBatch:
    """One pass: `struct` holds addresses into `arrays`, which this object keeps alive."""

    struct: BatchStruct
    arrays: tuple[Int32Array, ...]
    num_rows: int

    @classmethod
    def of(cls, chunks: Sequence[SequenceChunk], block_size: int) -> PackedBatch:
        """The chunks in the order given; every table is cut or filled up to the longest context among them."""
        # A decode step has few numbers: lists take less time than numpy's operators.
        positions: list[int] = []
        query_starts, output_rows = [0], list[int]()
        for chunk in chunks:
            positions.extend(range(chunk.start, chunk.start + len(chunk.token_ids)))
            output_rows.extend(range(len(positions) - chunk.num_outputs, len(positions)))
            query_starts.append(len(positions))
        width = -(-max(chunk.start + len(chunk.token_ids) for chunk in chunks) // block_size)
        token_ids = np.concatenate([chunk.token_ids for chunk in chunks], dtype=np.int32)
        tables = np.concatenate([_filled(chunk.block_table, width) for chunk in chunks], dtype=np.int32)
        numbers = np.array([*positions, *query_starts, *output_rows], np.int32)
        places = numbers.ctypes.data
        struct = BatchStruct(
            *(len(positions), len(chunks), len(output_rows), width),
            token_ids=token_ids.ctypes.data,
            positions=places,
            query_starts=places + numbers.itemsize * len(positions),
            block_tables=tables.ctypes.data,
            output_rows=places + numbers.itemsize * (len(positions) + len(query_starts)),
        )
        return cls(struct, (token_ids, numbers, tables), len(output_rows))


def _filled(table: IntArray, width: int) -> NDArray[Any]:
    held = table[:width]
    return held if len(held) == width else np.pad(held, (0, width - len(held)))


class CompiledDecoder:
    """Weights, KV cache and scratch memory of a decoder that `csrc/decoder/decoder.cpp` runs, one call a pass.

    The weights are packed in the order in which they are read.

    A row's result has the same bits whatever shares its pass: alone, in a crowd, in a prompt's chunk of any size.
    """

    def __init__(
        self, ops: ctypes.CDLL, fd_config: FDConfig, dims: Dimensions, tables: RotaryTables, weights: DecoderWeights
    ) -> None:
        self._ops = ops
        self._dims = dims
        precision = precision_of(fd_config)
        self._digits, self._bfloat16 = ACTIVATION_DIGITS[precision], precision == BFLOAT16
        self._block_size = fd_config.cache_config.block_size
        # Arrays that the operator references by address; they must outlive it.
        self._kept: list[Any] = []
        self._cache: list[NDArray[Any]] = []
        self._delete: weakref.finalize[..., CompiledDecoder] | None = None
        half = fd_config.cache_config.dtype == "float16"
        cache = CacheStruct(self._block_size, dims.num_kv_heads, dims.head_dim, half)
        layers = [self._layer(layer) for layer in weights.layers]
        embedding = self._linear([LinearWeights(weights.embedding)])
        head = embedding if weights.lm_head is None else self._linear([weights.lm_head])
        self._model = ModelStruct(
            num_layers=len(layers),
            hidden_size=dims.hidden_size,
            intermediate_size=dims.intermediate_size,
            num_heads=dims.num_heads,
            vocab_size=dims.vocab_size,
            max_context=fd_config.model_config.max_model_len,
            eps=dims.rms_norm_eps,
            attention_scale=dims.head_dim**-0.5,
            cache=cache,
            cos=self._keep(tables.cos),
            sin=self._keep(tables.sin),
            embedding=embedding,
            norm=self._keep(weights.norm),
            head=head,
            layers=(LayerStruct * len(layers))(*layers),
        )

    @property
    def weight_formats(self) -> list[WeightFormat]:
        """See `DecoderForCausalLM.weight_formats`."""
        layers = [self._model.layers[index] for index in range(self._model.num_layers)]
        linears = [linear for layer in layers for linear in (layer.qkv, layer.o, layer.gate_up, layer.down)]
        return [WeightFormat(linear.sections[0].format) for linear in [*linears, self._model.head]]

    def initialize_cache(self, num_blocks: int) -> None:
        """See `DecoderForCausalLM.initialize_cache`."""
        model, cache = self._model, self._model.cache
        dtype, rows = "float16" if cache.half else "float32", num_blocks * cache.kv_heads
        arrays = []
        for index in range(model.num_layers):
            keys = mapped_zeros(rows * cache.head_dim * _padded(cache.block_size), dtype)
            values = mapped_zeros(rows * cache.block_size * _padded(cache.head_dim), dtype)
            model.layers[index].keys, model.layers[index].values = keys.ctypes.data, values.ctypes.data
            arrays += [keys, values]
        if self._delete is not None:
            self._delete()
        self._ops.fdlp_decoder_new.restype = ctypes.c_void_p
        self._decoder = ctypes.c_void_p(self._ops.fdlp_decoder_new(ctypes.byref(model)))
        self._delete = weakref.finalize(self, self._ops.fdlp_decoder_delete, self._decoder)
        self._cache = [each.reshape(num_blocks, -1) for each in arrays]

    def block_copier(self) -> BlockCopier:
        """See `DecoderForCausalLM.block_copier`."""
        return self._copy_block

    def _copy_block(self, source: int, target: int) -> None:
        for each in self._cache:
            each[target] = each[source]

    def forward(self, chunks: Sequence[SequenceChunk]) -> Tensor:
        """See `DecoderForCausalLM.forward`."""
        batch = PackedBatch.of(chunks, self._block_size)
        hidden = paddle.empty([batch.num_rows, self._dims.hidden_size], "float32")
        self._ops.fdlp_decoder_forward(self._decoder, ctypes.byref(batch.struct), ctypes.c_void_p(hidden.data_ptr()))
        return hidden

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """See `DecoderForCausalLM.compute_logits`."""
        rows = hidden.shape[0]
        logits = paddle.empty([rows, self._dims.vocab_size], "float32")
        self._ops.fdlp_decoder_logits(
            self._decoder, ctypes.c_void_p(hidden.data_ptr()), rows, ctypes.c_void_p(logits.data_ptr())
        )
        return logits

    def _layer(self, weights: LayerWeights) -> LayerStruct:
        gate_up = [weights.gate_proj, weights.up_proj]
        return LayerStruct(
            qkv=self._linear([weights.q_proj, weights.k_proj, weights.v_proj]),
            o=self._linear([weights.o_proj]),
            gate_up=self._linear(gate_up, _turns(len(weights.gate_proj.weight))),
            down=self._linear([weights.down_proj]),
            input_norm=self._keep(weights.input_norm),
            post_attention_norm=self._keep(weights.post_attention_norm),
            q_norm=None if weights.q_norm is None else self._keep(weights.q_norm),
            k_norm=None if weights.k_norm is None else self._keep(weights.k_norm),
        )

    def _linear(self, parts: list[LinearWeights], order: NDArray[np.int64] | None = None) -> LinearStruct:
        """Several projections of one input as one, their outputs in `order` (see `PackedWeight.of`)."""
        matrices = [part.weight for part in parts]
        packed = PackedWeight.sections(
            self._ops, *matrices, quantized=self._digits > 0, bfloat16=self._bfloat16, order=order
        )
        bias = merged_bias(parts)
        if bias is not None and order is not None:
            bias = np.where(order == NO_ROW, np.float32(0), bias[order])
        in_features = matrices[0].shape[1]
        out_features = sum(map(len, matrices)) if order is None else len(order)
        kept = None if bias is None else self._keep(bias)
        for part in packed:
            self._keep(part.data)
        sections = section_structs(packed)
        return LinearStruct(in_features, out_features, self._digits, len(packed), sections, kept, self._bfloat16)

    def _keep(self, array: NDArray[Any]) -> int:
        kept = np.ascontiguousarray(array)
        self._kept.append(kept)
        return int(kept.ctypes.data)


def _turns(features: int) -> NDArray[np.int64]:
    """Turns of 16 gate and 16 up features, filled up with zeros, so that one panel holds both halves of a SwiGLU."""
    gate = np.full(_padded(features), NO_ROW)
    gate[:features] = np.arange(features)
    up = np.where(gate == NO_ROW, NO_ROW, gate + features)
    return np.stack([gate.reshape(-1, LANES), up.reshape(-1, LANES)], axis=1).reshape(-1)


def _padded(size: int) -> int:
    return -(-size // LANES) * LANES


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
