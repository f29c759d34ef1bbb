"""Root-mean-square layer norm (Zhang and Sennrich, 2019)."""

from __future__ import annotations

from paddle import Tensor
from paddle.incubate.nn.functional import fused_rms_norm

from fastdeploy_lp.model_executor.loader.weights import Weights


class RMSNorm:
    """x [tokens, hidden_size] scaled to unit root mean square, times a weight."""

    def __init__(self, weights: Weights, name: str, hidden_size: int, eps: float) -> None:
        self.weight = weights.take(f"{name}.weight", (hidden_size,))
        self._eps = eps

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(norm(x + residual), x + residual); without a residual, (norm(x), x)."""
        if residual is None:
            return fused_rms_norm(x, self.weight, None, self._eps, 1)[0], x
        out, residual_out = fused_rms_norm(x, self.weight, None, self._eps, 1, residual=residual)
        return out, residual_out
