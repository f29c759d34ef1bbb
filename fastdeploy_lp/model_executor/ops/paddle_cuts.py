"""Cuts of rows of logits with Paddle's own operators, on any device."""

from __future__ import annotations

import numpy as np
import paddle
from paddle import Tensor

from fastdeploy_lp.model_executor.ops.paddle_rows import ONE
from fastdeploy_lp.model_executor.ops.row_cuts import Cut, RowCuts
from fastdeploy_lp.model_executor.ops.row_ops import Floats, Int64s
from fastdeploy_lp.platforms import to_device

# The lowest logit, less the greatest, that is looked at: what is further down has no weight.
LOWEST = -700.0


class PaddleRowCuts(RowCuts):
    """The reference."""

    def cut(self, logits: Tensor, cut: Cut, rows: Int64s, values: Floats) -> None:
        """As the interface says."""
        where = to_device(rows)
        part = paddle.gather(logits, where)
        wide = part.astype("float64")
        highest = wide.max(axis=-1, keepdim=True)
        value = to_device(values.astype(np.float64)).unsqueeze(1)
        banned = _banned(cut, wide, highest, value) & paddle.isfinite(highest)
        logits.index_put_((where,), paddle.where(banned, paddle.full_like(part, -np.inf), part))

    def add(self, logits: Tensor, rows: Int64s, tokens: Int64s, values: Floats) -> None:
        """As the interface says."""
        at = (to_device(rows), to_device(tokens))
        logits.index_put_(at, to_device(values).astype(logits.dtype), accumulate=True)

    def add_scaled(self, logits: Tensor, rows: Int64s, tokens: Int64s, values: Floats) -> None:
        """As the interface says."""
        at = (to_device(rows), to_device(tokens))
        logit = paddle.gather_nd(logits, paddle.stack(at, axis=1)).astype("float64")
        raised = logit + logit.abs() * to_device(values.astype(np.float64))
        logits.index_put_(at, paddle.where(paddle.isinf(logit), logit, raised).astype(logits.dtype))


def _banned(cut: Cut, logits: Tensor, highest: Tensor, value: Tensor) -> Tensor:
    """Returns the tokens that a cut bans, bool [rows, vocab_size]; everything else is float64."""
    if cut is Cut.TYPICAL:
        return _untypical(logits, highest, value)
    if cut is Cut.EXCLUDE_TOP:
        return _above_last(logits, highest, highest + paddle.log(value) + _log_total(logits, highest))
    return logits < highest + _bound(cut, logits, highest, value).clip(max=0.0)


def _bound(cut: Cut, logits: Tensor, highest: Tensor, value: Tensor) -> Tensor:
    """Returns the distance below the greatest logit at which each row is cut, [rows, 1]."""
    if cut is Cut.MIN_P:
        return paddle.log(paddle.ceil(value * ONE).clip(min=1.0) / ONE)
    if cut is Cut.TOP_N_SIGMA:
        return -value * _deviation(logits, highest)
    bound = paddle.log(value) + _log_total(logits, highest)
    if cut is Cut.ETA:
        bound = paddle.minimum(bound, 0.5 * paddle.log(value) + _mean(logits, highest))
    return bound


def _weights(logits: Tensor, highest: Tensor) -> Tensor:
    return paddle.floor(paddle.exp(logits - highest) * ONE)


def _log_total(logits: Tensor, highest: Tensor) -> Tensor:
    return paddle.log(_weights(logits, highest).sum(axis=-1, keepdim=True) / ONE)


def _mean(logits: Tensor, highest: Tensor) -> Tensor:
    """The weighted mean of the logits, less the greatest one; [rows, 1]."""
    weights = _weights(logits, highest)
    products = weights * (logits - highest).clip(min=LOWEST)
    return products.sum(axis=-1, keepdim=True) / weights.sum(axis=-1, keepdim=True)


def _deviation(logits: Tensor, highest: Tensor) -> Tensor:
    """Standard deviation of the finite logits, [rows, 1]."""
    finite = paddle.isfinite(logits)
    x = paddle.where(finite, logits - highest, paddle.zeros_like(logits))
    count = finite.astype("float64").sum(axis=-1, keepdim=True)
    mean = x.sum(axis=-1, keepdim=True) / count
    variance = (x * x).sum(axis=-1, keepdim=True) / count - mean * mean
    return paddle.sqrt(variance.clip(min=0.0))


def _above_last(logits: Tensor, highest: Tensor, bound: Tensor) -> Tensor:
    """All that reach the bound but the last one of the ranking: of equally unlikely ones the one of the highest id."""
    reaching = (logits >= bound) & (bound <= highest)
    lowest = paddle.where(reaching, logits, paddle.full_like(logits, np.inf)).min(axis=-1, keepdim=True)
    ids = paddle.arange(logits.shape[-1]).unsqueeze(0)
    last = paddle.where(reaching & (logits == lowest), ids, paddle.full_like(ids, -1)).max(axis=-1, keepdim=True)
    return reaching & (ids != last)


def _untypical(logits: Tensor, highest: Tensor, share: Tensor) -> Tensor:
    weights = _weights(logits, highest)
    distance = ((logits - highest) - _mean(logits, highest)).abs().astype("float32")
    order = paddle.argsort(distance, axis=-1)
    cumulated = paddle.cumsum(paddle.take_along_axis(weights, order, axis=1), axis=-1)
    mass = share * weights.sum(axis=-1, keepdim=True)
    reached = (cumulated < mass).astype("int64").sum(axis=-1, keepdim=True).clip(max=logits.shape[-1] - 1)
    return distance > paddle.take_along_axis(distance, paddle.take_along_axis(order, reached, axis=1), axis=1)
