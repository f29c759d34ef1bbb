"""A weight matrix as the compiled products read it."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastdeploy_lp.model_executor.decoder_weights import FloatArray
from fastdeploy_lp.platforms.cpu import mapped_zeros


class WeightFormat(IntEnum):
    """How the numbers of a matrix lie in memory: `Format` of `csrc/packed_weights.h`.

    Levels are steps of a scale from a minimum on, which every group of 32 inputs has of its own for each output.
    """

    FLOAT32 = 0
    FLOAT16 = 1
    BFLOAT16 = 2
    LEVELS8 = 3
    LEVELS4 = 4

    @property
    def bits(self) -> int:
        """Bits of a weight, scales and minima aside."""
        return {WeightFormat.FLOAT32: 32, WeightFormat.LEVELS8: 8, WeightFormat.LEVELS4: 4}.get(self, 16)


@dataclass(frozen=True)
class PackedWeight:
    """A matrix [out_features, in_features] in panels of 32 outputs.

    Its format is the shortest that holds its numbers: of float32 weights as they are, of quantized ones as
    `layers/quantization.py` rounds them. Weights of GGUF's blocks of 32 with one scale take 4 or 8 bits either way and
    those of 16-bit checkpoints 16, of which a step reads an eighth to a half of the bytes.
    """

    format: WeightFormat
    data: NDArray[np.uint8]

    @classmethod
    def of(cls, ops: ctypes.CDLL, weight: FloatArray, *, quantized: bool) -> PackedWeight:
        """Pack float32 weights as they are, or quantized."""
        out_features, in_features = weight.shape
        source = np.ascontiguousarray(weight)
        address = source.ctypes.data_as(ctypes.c_void_p)
        chosen = WeightFormat(ops.fdlp_weight_format(address, in_features, out_features, quantized))
        ops.fdlp_packed_bytes.restype = ctypes.c_int64
        data: NDArray[Any] = mapped_zeros(ops.fdlp_packed_bytes(in_features, out_features, chosen), "uint8")
        ops.fdlp_pack(data.ctypes.data_as(ctypes.c_void_p), address, in_features, out_features, chosen)
        return cls(chosen, data)
