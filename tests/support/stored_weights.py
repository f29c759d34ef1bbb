"""Weights that checkpoints hold in less than 32 bits."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize

from fastdeploy_lp.model_executor.decoder_weights import FloatArray
from fastdeploy_lp.model_executor.ops.packed_weight import WeightFormat

BLOCK = 32
# Types of 16 bits by numpy's names, types of GGUF's blocks by GGUF's; and the shortest format that holds each.
STORED = {
    "float32": WeightFormat.FLOAT32,
    "bfloat16": WeightFormat.BFLOAT16,
    "float16": WeightFormat.FLOAT16,
    "Q4_0": WeightFormat.LEVELS4,
    "Q4_1": WeightFormat.LEVELS4,
    "Q5_0": WeightFormat.LEVELS5,
    "Q5_1": WeightFormat.LEVELS5,
    "Q8_0": WeightFormat.LEVELS8,
}


def as_stored(weight: FloatArray, kind: str) -> FloatArray:
    """The float32 weights [out_features, in_features] that are read where `weight` was stored as `kind`."""
    if kind in ("float32", "float16"):
        return weight.astype(kind).astype(np.float32)
    if kind == "bfloat16":
        return weight.astype(ml_dtypes.bfloat16).astype(np.float32)
    features = weight.shape[1]
    # A block that is not filled is one of a longer row: its extremes shall be among what is left of it.
    filled = np.pad(weight, ((0, 0), (0, -features % BLOCK)), mode="edge")
    stored = dequantize(quantize(filled, GGMLQuantizationType[kind]), GGMLQuantizationType[kind])
    return np.ascontiguousarray(stored[:, :features], np.float32)
