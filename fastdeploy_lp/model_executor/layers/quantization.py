"""Rounding of weights and activations for `--quantization` and `--dtype bfloat16`.

`--quantization`: 8-bit weights, 8- or 16-bit activations, all with scales for every group of 32 inputs.
A weight is minimum + scale * q with q in 0 … 255, for each output feature and group, scale and minimum as half floats.
An activation is scale * a with a in -127 … 127 (w8a8) or -32512 … 32512 (w8a16: two 8-bit digits), for each row and
group, found while it runs: a row's result does not depend on its batch, and nothing has to be calibrated. Groups
from GGUF blocks of 32 with one scale (Q4_0, Q4_1, Q5_0, Q5_1, Q8_0) keep that scale and lose nothing.

`--dtype bfloat16` on a device whose operators compute in float32: weights of products, the embedding, and activations
before each product are the nearest bfloat16, halves to the even one. Everything else is float32.
"""

from __future__ import annotations

from collections.abc import Iterator

import ml_dtypes
import numpy as np
import paddle
from paddle import Tensor

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.model_executor.decoder_weights import FloatArray
from fastdeploy_lp.platforms import current_platform

GROUP = 32
BFLOAT16 = "bfloat16"
ACTIVATION_DIGITS = {None: 0, BFLOAT16: 0, "w8a8": 1, "w8a16": 2}
LEVELS = {1: 127.0, 2: 127.0 * 256}
# Activations of a group that has none larger count as zero: the inverse of their step would be no float32 any more.
NOTHING = 1e-30


def precision_of(fd_config: FDConfig) -> str | None:
    """Returns what weights and activations are rounded to: a `--quantization`, BFLOAT16, or None."""
    model = fd_config.model_config
    rounds = model.dtype == BFLOAT16 and current_platform().model_dtype == "float32"
    return BFLOAT16 if rounds else model.quantization


def rounded_weight(weight: FloatArray, precision: str | None) -> FloatArray:
    """Returns weights [out_features, in_features] as products of a precision see them, in float32."""
    if precision == BFLOAT16:
        return weight.astype(ml_dtypes.bfloat16).astype(np.float32)
    return dequantized_weight(weight) if ACTIVATION_DIGITS[precision] else weight


def rounded_activations(x: Tensor, precision: str | None) -> Tensor:
    """Returns activations [tokens, features] as products of a precision see them, in their own type."""
    if precision == BFLOAT16:
        return x.astype("bfloat16").astype(x.dtype)
    digits = ACTIVATION_DIGITS[precision]
    return quantize_dequantize(x, digits) if digits else x


def dequantized_weight(weight: FloatArray) -> FloatArray:
    """Rounds weights [out_features, in_features] to 8 bits and dequantizes them."""
    out_features, in_features = weight.shape
    # Filling with the last column adds no new extreme to its group.
    groups = np.pad(weight, ((0, 0), (0, -in_features % GROUP)), mode="edge").reshape(out_features, -1, GROUP)
    low, high = groups.min(axis=2, keepdims=True), groups.max(axis=2, keepdims=True)
    rounded = _in_steps(groups, low, (high - low) / np.float32(255))
    for minimum, scale in _steps_of_blocks(low, high):
        exact = (_in_steps(groups, minimum, scale) == groups).all(axis=2, keepdims=True)
        rounded = np.where(exact, groups, rounded)
    return np.ascontiguousarray(rounded.reshape(out_features, -1)[:, :in_features], np.float32)


def _in_steps(groups: FloatArray, minimum: FloatArray, scale: FloatArray) -> FloatArray:
    """The nearest of 256 steps, counted with minimum and scale as they are stored."""
    # Values beyond half floats become infinities, which equal no weight.
    with np.errstate(over="ignore", invalid="ignore"):
        minimum, scale = (part.astype(np.float16).astype(np.float32) for part in (minimum, scale))
        steps = np.divide(groups - minimum, scale, out=np.zeros_like(groups), where=scale != 0)
        stepped: FloatArray = minimum + scale * np.clip(np.rint(steps), 0, 255)
    return stepped


def _steps_of_blocks(low: FloatArray, high: FloatArray) -> Iterator[tuple[FloatArray, FloatArray]]:
    """Minimum and scale of GGUF blocks with these extremes."""
    extreme: FloatArray = np.where(high > -low, high, low)
    yield low, (high - low) / np.float32(15)  # Q4_1
    yield extreme, extreme / np.float32(-8)  # Q4_0
    yield low, (high - low) / np.float32(31)  # Q5_1
    yield extreme, extreme / np.float32(-16)  # Q5_0
    with np.errstate(over="ignore"):
        scale = (np.abs(extreme) / np.float32(127)).astype(np.float16).astype(np.float32)
    yield np.float32(-128) * scale, scale  # Q8_0


def quantize_dequantize(x: Tensor, digits: int) -> Tensor:
    """Rounds activations [tokens, features] to one or two 8-bit digits and dequantizes them."""
    tokens, features = x.shape
    filled = paddle.nn.functional.pad(x, [0, -features % GROUP], data_format="NCL") if features % GROUP else x
    groups = filled.reshape([tokens, -1, GROUP])
    most = groups.abs().max(axis=-1, keepdim=True)
    inverse = paddle.where(most > NOTHING, LEVELS[digits] / most, paddle.zeros_like(most))
    return (paddle.round(groups * inverse) * (most / LEVELS[digits])).reshape([tokens, -1])[:, :features]
