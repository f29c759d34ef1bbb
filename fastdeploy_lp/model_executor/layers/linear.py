"""Matrix products with weights."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import paddle
from paddle import Tensor
from paddle.nn.quant import weight_only_linear, weight_quantize

from fastdeploy_lp.model_executor.decoder_weights import FloatArray, LinearWeights, floats
from fastdeploy_lp.model_executor.layers.quantization import ACTIVATION_DIGITS, rounded_activations, rounded_weight
from fastdeploy_lp.platforms import current_platform

ALGORITHM = "weight_only_int8"
# The operators' tiles: inputs and outputs of other sizes are filled up with zeros.
IN_MULTIPLE, OUT_MULTIPLE = 64, 16


class WeightOnlyLinear:
    """x [tokens, in_features] → [tokens, out_features], both in `dtype`; one scale for every output feature.

    Activations are not rounded. `dtype` is "bfloat16" or "float16".
    """

    def __init__(self, weights: LinearWeights, dtype: str) -> None:
        self._out_features, self._in_features = weights.weight.shape
        self._fill_in, fill_out = -self._in_features % IN_MULTIPLE, -self._out_features % OUT_MULTIPLE
        matrix = np.pad(floats(weights.weight).T, ((0, self._fill_in), (0, fill_out)))
        self._weight, self._scale = weight_quantize(paddle.to_tensor(matrix, dtype=dtype), algo=ALGORITHM)
        bias = None if weights.bias is None else np.pad(weights.bias, (0, fill_out))
        self._bias = None if bias is None else paddle.to_tensor(bias, dtype=dtype)

    def __call__(self, x: Tensor) -> Tensor:
        if self._fill_in:
            x = paddle.concat([x, paddle.zeros([x.shape[0], self._fill_in], x.dtype)], axis=1)
        out = weight_only_linear(x, self._weight, self._bias, self._scale, "int8")
        return out if out.shape[1] == self._out_features else out[:, : self._out_features]


class LinearLayer(Protocol):
    """x [tokens, in_features] → [tokens, out_features], in the type of x."""

    def __call__(self, x: Tensor) -> Tensor: ...


def linear(weights: LinearWeights, precision: str | None) -> LinearLayer:
    """The product as this platform computes it in a precision (`precision_of`)."""
    platform = current_platform()
    if ACTIVATION_DIGITS[precision] and platform.weight_only_int8:
        return WeightOnlyLinear(weights, platform.model_dtype)
    return Linear(weights, precision, dtype=platform.model_dtype)


class Linear:
    """x [tokens, in_features] → [tokens, out_features].

    Weights are kept [in_features, out_features]: with one row, a product with the transposed layout takes 1.6 times
    as long. Weights and activations are rounded to the precision; the product itself is in `dtype`.
    """

    def __init__(self, weights: LinearWeights, precision: str | None = None, *, dtype: str = "float32") -> None:
        matrix = rounded_weight(floats(weights.weight), precision)
        self.weight = paddle.to_tensor(np.ascontiguousarray(matrix.T), dtype=dtype)
        self.bias = None if weights.bias is None else paddle.to_tensor(weights.bias, dtype=dtype)
        self._precision = precision

    def __call__(self, x: Tensor) -> Tensor:
        out = paddle.matmul(rounded_activations(x, self._precision), self.weight)
        return out if self.bias is None else out + self.bias


def merged(parts: list[LinearWeights]) -> LinearWeights:
    """Several projections of one input as one, their outputs side by side; any of them may have a bias."""
    return LinearWeights(np.concatenate([floats(part.weight) for part in parts]), merged_bias(parts))


def merged_bias(parts: list[LinearWeights]) -> FloatArray | None:
    """The biases side by side, zeros for parts that have none; None if no part has one."""
    if all(part.bias is None for part in parts):
        return None
    zeros = [np.zeros(len(part.weight), np.float32) for part in parts]
    return np.concatenate([zero if part.bias is None else part.bias for part, zero in zip(parts, zeros, strict=True)])
