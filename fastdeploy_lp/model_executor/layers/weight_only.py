"""8-bit weights by Paddle's own operators: what `--quantization w8a16` means on a GPU. Not yet run on a GPU."""

from __future__ import annotations

import numpy as np
import paddle
from paddle import Tensor
from paddle.nn.quant import weight_only_linear, weight_quantize

from fastdeploy_lp.model_executor.decoder_weights import LinearWeights, floats

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
