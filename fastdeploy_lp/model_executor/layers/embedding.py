"""Embedding of token ids."""

from __future__ import annotations

import paddle
from paddle import Tensor

from fastdeploy_lp.model_executor.decoder_weights import FloatArray
from fastdeploy_lp.model_executor.layers.quantization import ACTIVATION_DIGITS, dequantized_weight
from fastdeploy_lp.platforms import current_platform


class Embedding:
    """token_ids [tokens] → [tokens, hidden_size]; the weight [vocab_size, hidden_size] is rounded where products are.

    If only matrix products have 8-bit weights, the embedding is not rounded.
    """

    def __init__(self, weight: FloatArray, quantization: str | None) -> None:
        platform = current_platform()
        rounded = ACTIVATION_DIGITS[quantization] and not platform.weight_only_int8
        self._weight = paddle.to_tensor(dequantized_weight(weight) if rounded else weight, dtype=platform.model_dtype)

    def __call__(self, token_ids: Tensor) -> Tensor:
        return paddle.gather(self._weight, token_ids)
