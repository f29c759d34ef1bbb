"""The two orders of rotary pairs in query and key projections."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

_Number = TypeVar("_Number", bound=np.generic)


def undo_rope_interleaving(rows: NDArray[_Number], heads: int) -> NDArray[_Number]:
    """Reorders query or key rows [heads * head_dim, …] from interleaved to half-rotating rotary embedding.

    Interleaved, the two coordinates of a rotated pair are adjacent; rotate-half needs all first coordinates, then all
    second ones. Scores are unchanged if queries and keys are reordered alike.
    """
    pairs = rows.reshape(heads, -1, 2, *rows.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)
