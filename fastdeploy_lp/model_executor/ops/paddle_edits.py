"""Edits of rows of logits with numpy in host memory, and with Paddle's own operators on any device."""

from __future__ import annotations

from collections.abc import Callable
from operator import is_
from typing import Any, Generic, TypeVar

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle import Tensor

from fastdeploy_lp.model_executor.ops.row_ops import (
    Bits,
    Cut,
    Floats,
    Int64s,
    Penalties,
    RowEdits,
    TokenLists,
)
from fastdeploy_lp.platforms import to_device, writable_view, write_rows

# The weight of the most likely token; csrc/rows/row_weights.h says why weights are whole numbers.
ONE = 2.0**32
# A row's maximum below this is none: a GPU's `max` begins with the lowest float, and finds that in a row of -inf.
NO_LOGIT = -3e38
# A logit so far below the greatest one weighs nothing, and unlike -inf its product with nothing is nothing.
LOWEST = -700.0
# A word with one bit set, for each of its bits.
EACH_BIT = (np.uint32(1) << np.arange(32, dtype=np.uint32)).view(np.int32)

Operand = TypeVar("Operand")


class LastOperands(Generic[Operand]):
    """Operands made from the arrays of the last edit, kept for the next one with the same arrays.

    Building them costs as much as a small edit, and a request's edits often repeat from step to step.
    """

    def __init__(self, make: Callable[..., tuple[Operand, ...]]) -> None:
        self._make = make
        self._arrays: tuple[NDArray[Any], ...] = ()
        self._operands: tuple[Operand, ...] = ()

    def of(self, *arrays: NDArray[Any]) -> tuple[Operand, ...]:
        """Returns one operand for each array."""
        if len(arrays) != len(self._arrays) or not all(map(is_, arrays, self._arrays)):
            self._arrays, self._operands = arrays, self._make(*arrays)
        return self._operands


class PaddleRowEdits(RowEdits):
    """The reference.

    Sparse edits in host memory use numpy: Paddle's operator wakes a thread for each core even for little work. On two
    busy cores it took 45 µs for 2,048 entries, numpy 5 µs.
    """

    def __init__(self) -> None:
        self._tensors: LastOperands[Tensor] = LastOperands(lambda *arrays: tuple(map(to_device, arrays)))

    def penalize(self, logits: Tensor, penalties: Penalties) -> None:
        """As the interface says."""
        lists = penalties.lists
        at = (to_device(lists.row_of_token), to_device(lists.tokens))
        lengths = np.diff(lists.offsets)
        repetition, presence, frequency = (
            np.repeat(each.astype(np.float64), lengths)
            for each in (penalties.repetition, penalties.presence, penalties.frequency)
        )
        taken_off = frequency * penalties.counts
        rate = to_device(repetition)
        logit = paddle.gather_nd(logits, paddle.stack(at, axis=1)).astype("float64")
        logit = paddle.where(logit > 0, logit / rate, logit * rate)
        logit = logit - to_device(taken_off) - to_device(presence * (penalties.counts > 0))
        logits.index_put_(at, logit.astype(logits.dtype))

    def ban(self, logits: Tensor, rows: Int64s, tokens: Int64s) -> None:
        """As the interface says."""
        host = writable_view(logits)
        if host is not None:
            host[rows, tokens] = -np.inf
            return
        logits.index_put_(self._tensors.of(rows, tokens), paddle.full([len(rows)], -np.inf, logits.dtype))

    def allow_only(self, logits: Tensor, lists: TokenLists) -> None:
        """As the interface says."""
        host = writable_view(logits)
        if host is not None:
            kept = host[lists.row_of_token, lists.tokens]
            _ban_rows(host, lists.rows)
            host[lists.row_of_token, lists.tokens] = kept
            return
        values = _gathered(logits, lists.row_of_token, lists.tokens)
        write_rows(logits, to_device(lists.rows), _no_tokens(logits, len(lists.rows)))
        logits.index_put_((to_device(lists.row_of_token), to_device(lists.tokens)), values)

    def mask(self, logits: Tensor, rows: Int64s, bits: Bits) -> None:
        """As the interface says."""
        at = to_device(rows)
        part = paddle.gather(logits, at)
        allowed = paddle.bitwise_and(to_device(bits).unsqueeze(-1), to_device(EACH_BIT)) != 0
        allowed = allowed.reshape([len(rows), -1])[:, : logits.shape[-1]]
        write_rows(logits, at, paddle.where(allowed, part, paddle.full_like(part, -np.inf)))

    def force(self, logits: Tensor, rows: Int64s, tokens: Int64s) -> None:
        """As the interface says."""
        host = writable_view(logits)
        if host is not None:
            _ban_rows(host, rows)
            host[rows, tokens] = 0.0
            return
        where, chosen = self._tensors.of(rows, tokens)
        write_rows(logits, where, _no_tokens(logits, len(rows)))
        logits.index_put_((where, chosen), paddle.zeros([len(rows)], logits.dtype))

    def add(self, logits: Tensor, rows: Int64s, tokens: Int64s, values: Floats | Tensor) -> None:
        """As the interface says."""
        if isinstance(values, Tensor):
            logits.index_put_(self._tensors.of(rows, tokens), values.astype(logits.dtype), accumulate=True)
            return
        host = writable_view(logits)
        if host is not None:
            np.add.at(host.reshape(-1), rows * host.shape[1] + tokens, values.astype(host.dtype))
            return
        where, chosen, added = self._tensors.of(rows, tokens, values)
        logits.index_put_((where, chosen), added.astype(logits.dtype), accumulate=True)

    def add_scaled(self, logits: Tensor, rows: Int64s, tokens: Int64s, values: Floats) -> None:
        """As the interface says."""
        at = (to_device(rows), to_device(tokens))
        logit = paddle.gather_nd(logits, paddle.stack(at, axis=1)).astype("float64")
        raised = logit + logit.abs() * to_device(values.astype(np.float64))
        logits.index_put_(at, paddle.where(paddle.isinf(logit), logit, raised).astype(logits.dtype))

    def values_at(self, logits: Tensor, rows: Int64s, tokens: Int64s) -> Floats | Tensor:
        """As the interface says."""
        host = writable_view(logits)
        if host is not None:
            return host[rows, tokens]
        return _gathered(logits, rows, tokens)

    def cut(self, logits: Tensor, cut: Cut, rows: Int64s, values: Floats) -> None:
        """As the interface says."""
        where = to_device(rows)
        part = paddle.gather(logits, where)
        wide = part.astype("float64")
        highest = wide.max(axis=-1, keepdim=True)
        value = to_device(values.astype(np.float64)).unsqueeze(1)
        banned = _banned(cut, wide, highest, value) & can_be_drawn_from(highest)
        write_rows(logits, where, paddle.where(banned, paddle.full_like(part, -np.inf), part))


def can_be_drawn_from(highest: Tensor) -> Tensor:
    """Returns True for the greatest logit of a row without NaN and +inf that has a finite logit; bool."""
    return paddle.isfinite(highest) & (highest > NO_LOGIT)


def cumsum(rows: Tensor) -> Tensor:
    """Returns the cumulated sums of each of rows [n, *].

    A GPU sums a single row by a library that allocates memory, for which the host waits.
    """
    if rows.shape[0] != 1:
        return paddle.cumsum(rows, axis=-1)
    return paddle.cumsum(paddle.concat([rows, rows]), axis=-1)[:1]


def argsort(rows: Tensor) -> Tensor:
    """Returns the ascending order of each of rows [n, *], int64; the host waits for a single row as in `cumsum`."""
    if rows.shape[0] != 1:
        return paddle.argsort(rows, axis=-1)
    return paddle.argsort(paddle.concat([rows, rows]), axis=-1)[:1]


def _gathered(logits: Tensor, rows: Int64s, tokens: Int64s) -> Tensor:
    # Unlike `gather_nd`, `gather` has a kernel for bfloat16 on the CPU.
    return paddle.gather(logits.reshape([-1]), to_device(rows * logits.shape[1] + tokens))


def _ban_rows(host: NDArray[Any], rows: Int64s) -> None:
    # One by one: for 32 rows of 49,152 logits, `host[rows] = -np.inf` took 1.1 ms, this 0.7 ms.
    for row in rows.tolist():
        host[row] = -np.inf


def _no_tokens(logits: Tensor, rows: int) -> Tensor:
    # `index_fill_` would copy the number to the device while the host waits.
    return paddle.full([rows, logits.shape[1]], -np.inf, logits.dtype)


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
    order = argsort(distance)
    cumulated = cumsum(paddle.take_along_axis(weights, order, axis=1))
    mass = share * weights.sum(axis=-1, keepdim=True)
    reached = (cumulated < mass).astype("int64").sum(axis=-1, keepdim=True).clip(max=logits.shape[-1] - 1)
    return distance > paddle.take_along_axis(distance, paddle.take_along_axis(order, reached, axis=1), axis=1)
