"""The two orders in which the coordinates of rotary pairs stand in query and key projections."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

_Number = TypeVar("_Number", bound=np.generic)


def undo_rope_interleaving(rows: NDArray[_Number], heads: int) -> NDArray[_Number]:
    """Reorder query or key rows [heads * head_dim, …] from interleaved to half-rotating rotary embedding.

    Interleaved, the two coordinates of a rotated pair stand next to each other; rotate-half wants all first ones, then
    all second ones. Queries and keys reordered alike give the same scores.
    """
    pairs = rows.reshape(heads, -1, 2, *rows.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)
