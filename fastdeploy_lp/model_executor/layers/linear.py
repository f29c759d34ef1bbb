"""Matrix products with weights."""

from __future__ import annotations

import numpy as np
import paddle
from paddle import Tensor

from fastdeploy_lp.model_executor.decoder_weights import LinearWeights
from fastdeploy_lp.model_executor.layers.quantization import dequantized_weight, quantize_dequantize


class Linear:
    """x [tokens, in_features] → [tokens, out_features].

    Weights are kept [in_features, out_features]: with one row, a product with the transposed layout takes 1.6 times
    as long. `int8` rounds weights and activations as the compiled operators do; the product itself is float32.
    """

    def __init__(self, weights: LinearWeights, *, int8: bool = False) -> None:
        matrix = dequantized_weight(weights.weight) if int8 else weights.weight
        self.weight = paddle.to_tensor(np.ascontiguousarray(matrix.T))
        self.bias = None if weights.bias is None else paddle.to_tensor(weights.bias)
        self._int8 = int8

    def __call__(self, x: Tensor) -> Tensor:
        out = paddle.matmul(quantize_dequantize(x) if self._int8 else x, self.weight)
        return out if self.bias is None else out + self.bias


def merged(parts: list[LinearWeights]) -> LinearWeights:
    """Several projections of one input as one, their outputs side by side."""
    biases = [part.bias for part in parts if part.bias is not None]
    return LinearWeights(
        weight=np.concatenate([part.weight for part in parts]), bias=np.concatenate(biases) if biases else None
    )
