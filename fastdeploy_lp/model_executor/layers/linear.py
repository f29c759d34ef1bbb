"""Matrix products with weights."""

from __future__ import annotations

import paddle
from paddle import Tensor

from fastdeploy_lp.model_executor.loader.weights import Weights


class Linear:
    """x [tokens, in_features] → [tokens, out_features], with a bias if the checkpoint has one.

    Weights are kept [in_features, out_features]: with one row, a product with the transposed layout takes 1.6 times
    as long.
    """

    def __init__(self, weights: Weights, name: str, in_features: int, out_features: int) -> None:
        self.weight = weights.take(f"{name}.weight", (out_features, in_features), transpose=True)
        bias = f"{name}.bias"
        self.bias = weights.take(bias, (out_features,)) if bias in weights else None

    def __call__(self, x: Tensor) -> Tensor:
        out = paddle.matmul(x, self.weight)
        return out if self.bias is None else out + self.bias


class MergedLinear:
    """Several projections of one input as one product: x [tokens, in_features] → [tokens, sum(out_features)]."""

    def __init__(self, weights: Weights, names: list[str], in_features: int, out_features: list[int]) -> None:
        parts = [Linear(weights, name, in_features, size) for name, size in zip(names, out_features, strict=True)]
        self.weight = paddle.concat([part.weight for part in parts], axis=1)
        biases = [part.bias for part in parts if part.bias is not None]
        self.bias = paddle.concat(biases) if biases else None

    def __call__(self, x: Tensor) -> Tensor:
        out = paddle.matmul(x, self.weight)
        return out if self.bias is None else out + self.bias
