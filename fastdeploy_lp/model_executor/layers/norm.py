"""Root-mean-square layer norm (Zhang and Sennrich, 2019)."""

from __future__ import annotations

import paddle
from paddle import Tensor
from paddle.incubate.nn.functional import fused_rms_norm

from fastdeploy_lp.model_executor.decoder_weights import FloatArray
from fastdeploy_lp.platforms import current_platform
from fastdeploy_lp.platforms.cpu import has_avx512


class RMSNorm:
    """x [..., size] scaled to unit root mean square, times a weight [size]."""

    def __init__(self, weight: FloatArray, eps: float) -> None:
        self.weight = paddle.to_tensor(weight, dtype=current_platform().model_dtype)
        self._eps = eps
        # Paddle's operator for the CPU consists of AVX-512 instructions, on any processor.
        self._normalize = fused_rms_norm if has_avx512() or paddle.is_compiled_with_cuda() else _rms_norm

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(norm(x + residual), x + residual); without a residual, (norm(x), x)."""
        if residual is None:
            return self._normalize(x, self.weight, None, self._eps, x.ndim - 1)[0], x
        out, residual_out = self._normalize(x, self.weight, None, self._eps, 1, residual=residual)
        return out, residual_out


def _rms_norm(
    x: Tensor, weight: Tensor, bias: None, eps: float, axis: int, residual: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Returns what `fused_rms_norm` does, by several operators; `axis` is the last one."""
    del bias, axis
    total = x if residual is None else x + residual
    scale = paddle.rsqrt((total * total).mean(axis=-1, keepdim=True) + eps)
    return total * scale * weight, total
