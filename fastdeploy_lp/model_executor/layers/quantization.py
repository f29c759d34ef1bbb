"""What `--quantization` rounds: 8-bit weights, 8- or 16-bit activations, all with scales for every group of 32 inputs.

A weight is minimum + scale * q with q in 0 … 255, for each output feature and group, scale and minimum as half floats.
An activation is scale * a with a in -127 … 127 (w8a8) or -32512 … 32512 (w8a16: two 8-bit digits), for each row and
group, found while it runs: a row's result does not depend on its batch, and nothing has to be calibrated. Groups of 32
with a minimum hold the levels of 4-bit GGUF blocks almost exactly.
"""

from __future__ import annotations

import numpy as np
import paddle
from paddle import Tensor

from fastdeploy_lp.model_executor.decoder_weights import FloatArray

GROUP = 32
ACTIVATION_DIGITS = {None: 0, "w8a8": 1, "w8a16": 2}
LEVELS = {1: 127.0, 2: 127.0 * 256}
# Activations of a group that has none larger count as zero: the inverse of their step would be no float32 any more.
NOTHING = 1e-30


def dequantized_weight(weight: FloatArray) -> FloatArray:
    """The weights [out_features, in_features] that the 8-bit numbers stand for."""
    out_features, in_features = weight.shape
    # Filling with the last column adds no new extreme to its group.
    groups = np.pad(weight, ((0, 0), (0, -in_features % GROUP)), mode="edge").reshape(out_features, -1, GROUP)
    low = groups.min(axis=2, keepdims=True)
    scale = ((groups.max(axis=2, keepdims=True) - low) / np.float32(255)).astype(np.float16).astype(np.float32)
    low = low.astype(np.float16).astype(np.float32)
    steps = np.divide(groups - low, scale, out=np.zeros_like(groups), where=scale > 0)
    rounded = low + scale * np.clip(np.rint(steps), 0, 255)
    return np.ascontiguousarray(rounded.reshape(out_features, -1)[:, :in_features], np.float32)


def quantize_dequantize(x: Tensor, digits: int) -> Tensor:
    """The activations [tokens, features] that their one or two 8-bit digits stand for."""
    tokens, features = x.shape
    filled = paddle.nn.functional.pad(x, [0, -features % GROUP], data_format="NCL") if features % GROUP else x
    groups = filled.reshape([tokens, -1, GROUP])
    most = groups.abs().max(axis=-1, keepdim=True)
    inverse = paddle.where(most > NOTHING, LEVELS[digits] / most, paddle.zeros_like(most))
    return (paddle.round(groups * inverse) * (most / LEVELS[digits])).reshape([tokens, -1])[:, :features]
