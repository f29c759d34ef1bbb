"""A weight matrix as the compiled products read it."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastdeploy_lp.model_executor.decoder_weights import FloatArray
from fastdeploy_lp.platforms.cpu import mapped_zeros

FLOAT_BITS = 32


@dataclass(frozen=True)
class PackedWeight:
    """A matrix [out_features, in_features] in panels of 32 outputs, `bits` a weight: 32, 8 or 4.

    Quantized weights take 4 bits where their 8-bit levels are 16 equal steps in every group of 32 inputs, as those of
    4-bit GGUF blocks (Q4_1) are: the same numbers, of which a step reads half the bytes.
    """

    bits: int
    data: NDArray[Any]

    @classmethod
    def of(cls, ops: ctypes.CDLL, weight: FloatArray, *, quantized: bool) -> PackedWeight:
        """Pack float32 weights as they are, or quantized (`layers/quantization.py`)."""
        out_features, in_features = weight.shape
        source = np.ascontiguousarray(weight)
        address = source.ctypes.data_as(ctypes.c_void_p)
        bits = ops.fdlp_packed_bits(address, in_features, out_features) if quantized else FLOAT_BITS
        ops.fdlp_packed_bytes.restype = ctypes.c_int64
        data = mapped_zeros(ops.fdlp_packed_bytes(in_features, out_features, bits), "uint8")
        ops.fdlp_pack(data.ctypes.data_as(ctypes.c_void_p), address, in_features, out_features, bits)
        return cls(bits, data)
