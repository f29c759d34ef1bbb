"""A decoder computed by one compiled operator a pass, its weights packed in the order in which they are read."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle import Tensor

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.model_executor.block_copier import BlockCopier
from fastdeploy_lp.model_executor.decoder_weights import DecoderWeights, LayerWeights, LinearWeights
from fastdeploy_lp.model_executor.dimensions import Dimensions
from fastdeploy_lp.model_executor.forward_batch import IntArray, SequenceChunk
from fastdeploy_lp.model_executor.layers.linear import merged_bias
from fastdeploy_lp.model_executor.layers.quantization import ACTIVATION_DIGITS, BFLOAT16, precision_of
from fastdeploy_lp.model_executor.layers.rotary import RotaryTables
from fastdeploy_lp.model_executor.ops.packed_weight import NO_ROW, PackedWeight, WeightFormat, section_structs
from fastdeploy_lp.model_executor.ops.structs import BatchStruct, CacheStruct, LayerStruct, LinearStruct, ModelStruct
from fastdeploy_lp.platforms.cpu import mapped_zeros

Int32Array = NDArray[np.int32]


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


LANES = 16


class CompiledDecoder:
    """Weights, KV cache and scratch memory of a decoder that `csrc/decoder/decoder.cpp` runs.

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
