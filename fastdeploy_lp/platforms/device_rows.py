"""Writes to whole rows of a tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paddle import Tensor


def write_rows(target: Tensor, rows: Tensor, values: Tensor) -> None:
    """Writes `values` [n, *] to distinct rows int64 [n] of a tensor [*, *], in place.

    `index_put_` would first build an index of every element on a GPU: seven times the work for 256
    rows of 151,936 logits.
    """
    import paddle

    # On the CPU, `scatter_` has no kernel for bfloat16.
    if target.dtype in (paddle.float32, paddle.float64, paddle.int64):
        target.scatter_(rows, values)
    else:
        target.index_put_((rows,), values)
