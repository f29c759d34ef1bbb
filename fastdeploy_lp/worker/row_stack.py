"""Copies of rows of logits, in one tensor."""

from __future__ import annotations

import paddle
from paddle import Tensor

from fastdeploy_lp.model_executor.ops.row_ops import Int64s, RowOps


class RowStack:
    """Growable stack of rows; `expected` is the initial capacity."""

    def __init__(self, ops: RowOps, expected: int) -> None:
        self._ops = ops
        self._expected = expected
        self._rows: Tensor | None = None
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def push(self, logits: Tensor, rows: Int64s) -> None:
        """Appends copies of these rows of logits [*, vocab_size]."""
        end = self._count + len(rows)
        if self._rows is None:
            self._rows = paddle.empty([max(self._expected, end), logits.shape[-1]], "float32")
        elif end > self._rows.shape[0]:
            self._rows = paddle.concat([self._rows, paddle.empty([end, logits.shape[-1]], "float32")])
        self._ops.copy_rows(logits, rows, self._rows, self._count)
        self._count = end

    def cut(self, count: int) -> None:
        """Keeps the first `count` rows."""
        self._count = min(self._count, count)

    def take(self) -> Tensor:
        """Returns all rows, float32 [rows, vocab_size]; raises ValueError if there are none."""
        if self._rows is None or not self._count:
            raise ValueError("rows: there are none")
        return self._rows[: self._count]
