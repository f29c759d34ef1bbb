"""Check that weights are finite."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def is_finite(array: NDArray[np.floating[Any]]) -> bool:
    """Returns True if no element is NaN or infinite.

    A sum takes one pass without a copy, and NaN and infinity persist in it; a second pass runs only if the sum itself
    overflows.
    """
    with np.errstate(all="ignore"):
        return bool(np.isfinite(array.sum()) or np.isfinite(array).all())
