"""Whether weights are numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def is_finite(array: NDArray[np.floating[Any]]) -> bool:
    """Whether there is neither a NaN nor an infinity among the elements.

    A sum is one pass without a copy, and neither goes away in it; only where the sum itself is too large for a float
    does a second pass decide.
    """
    with np.errstate(all="ignore"):
        return bool(np.isfinite(array.sum()) or np.isfinite(array).all())
