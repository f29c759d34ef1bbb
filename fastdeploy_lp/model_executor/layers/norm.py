"""Root-mean-square layer norm (Zhang and Sennrich, 2019)."""

from __future__ import annotations

import paddle
from paddle import Tensor
from paddle.incubate.nn.functional import fused_rms_norm

from fastdeploy_lp.model_executor.decoder_weights import FloatArray
from fastdeploy_lp.platforms import current_platform


class RMSNorm:
    """x [..., size] scaled to unit root mean square, times a weight [size]."""

    def __init__(self, weight: FloatArray, eps: float) -> None:
        self.weight = paddle.to_tensor(weight, dtype=current_platform().model_dtype)
        self._eps = eps

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(norm(x + residual), x + residual); without a residual, (norm(x), x)."""
        if residual is None:
            return fused_rms_norm(x, self.weight, None, self._eps, x.ndim - 1)[0], x
        out, residual_out = fused_rms_norm(x, self.weight, None, self._eps, 1, residual=residual)
        return out, residual_out
