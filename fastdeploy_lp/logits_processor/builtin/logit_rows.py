"""Sparse edits of the logits in place, in host memory or on a device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fastdeploy_lp.platforms import in_host_memory, to_device

if TYPE_CHECKING:
    from paddle import Tensor

Indices = Sequence[int] | NDArray[np.int64]


class LogitRows:
    """Logits [rows, vocab_size]; `host` is a view of their memory if numpy can write it, else None.

    The cost of an edit depends on its size: (row, token) pairs, or whole rows in which all but a few tokens are ruled
    out. Indices and values are copied to a device; nothing is copied back.
    """

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits
        self.host = writable_view(logits)

    def add(self, rows: Indices, tokens: Indices, values: Sequence[float] | NDArray[np.float64]) -> None:
        """Adds values [n] at (rows [n], tokens [n]); pairs may repeat."""
        if self.host is not None:
            places = np.asarray(rows, np.int64) * self.host.shape[1] + np.asarray(tokens, np.int64)
            np.add.at(self.host.reshape(-1), places, np.asarray(values, self.host.dtype))
            return
        self._put(rows, tokens, values, accumulate=True)

    def ban(self, rows: Indices, tokens: Indices) -> None:
        """Rules out tokens [n] in rows [n]."""
        if self.host is not None:
            self.host[rows, tokens] = -np.inf
        elif len(rows):
            self._put(rows, tokens, [-np.inf] * len(rows))

    def force(self, rows: Indices, tokens: Indices) -> None:
        """Rules out all tokens but tokens[i] in row rows[i], whatever its logit was; rows are distinct."""
        if self.host is not None:
            for row in rows:
                self.host[row] = -np.inf
            self.host[rows, tokens] = 0.0
        elif len(rows):
            self._rule_out(rows)
            self._put(rows, tokens, [0.0] * len(rows))

    def keep(self, rows: Indices, tokens: Sequence[NDArray[np.int64]]) -> None:
        """Rules out all tokens but tokens[i] in row rows[i]; these keep their logits."""
        if self.host is not None:
            for row, kept in zip(rows, tokens, strict=True):
                logits = self.host[row]
                values = logits[kept]
                logits[:] = -np.inf
                logits[kept] = values
        elif len(rows):
            places = np.repeat(np.asarray(rows), [len(kept) for kept in tokens]), np.concatenate(tokens)
            values = self.values_at(*places)
            self._rule_out(rows)
            self.logits.index_put_(tuple(map(_index, places)), values)

    def values_at(self, rows: Indices, tokens: Indices) -> Any:
        """Returns a copy of the logits [n] at (rows [n], tokens [n]): numpy in host memory, else a tensor."""
        if self.host is not None:
            return self.host[rows, tokens]
        import paddle

        places = np.asarray(rows, np.int64) * self.logits.shape[1] + np.asarray(tokens, np.int64)
        return paddle.gather(self.logits.reshape([-1]), _index(places))

    def _rule_out(self, rows: Indices) -> None:
        # Imported here: the API process reads Params from builtins and does not need Paddle.
        import paddle

        # `index_fill_` would copy the number to the device while the host waits.
        ruled_out = paddle.full([len(rows), self.logits.shape[1]], -np.inf, self.logits.dtype)
        self.logits.index_put_((_index(rows),), ruled_out)

    def _put(self, rows: Indices, tokens: Indices, values: Any, *, accumulate: bool = False) -> None:
        # Imported here: the API process reads Params from builtins and does not need Paddle.
        import paddle

        added = values if isinstance(values, paddle.Tensor) else to_device(np.asarray(values, np.float64))
        added = added.astype(self.logits.dtype)
        self.logits.index_put_((_index(rows), _index(tokens)), added, accumulate=accumulate)


def _index(values: Indices) -> Tensor:
    return to_device(np.asarray(values, np.int64))


def writable_view(logits: Tensor) -> NDArray[Any] | None:
    """Returns a view of the logits' memory [rows, vocab_size], None if numpy cannot write it."""
    if not in_host_memory(logits):
        return None
    try:
        host = np.from_dlpack(logits)
    except (BufferError, RuntimeError):  # for example bfloat16, which numpy lacks
        return None
    # Before numpy 2.1 such views are read-only; without contiguous rows `reshape` would copy.
    return host if host.flags.writeable and host.flags.c_contiguous else None
