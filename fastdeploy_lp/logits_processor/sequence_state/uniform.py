"""Random numbers for drawing tokens."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Uint64Array = NDArray[np.uint64]


def seeded_uniform(seeds: Uint64Array, positions: Uint64Array) -> NDArray[np.float32]:
    """Returns one number in (0, 1] for each (seed, position), from a counter-based generator.

    Two rounds of the SplitMix64 finalizer (Steele et al., 2014) over seed and position; the top 24 bits become a
    float32 without rounding.
    """
    words = _mix(_mix(seeds) ^ (positions * np.uint64(0x9E3779B97F4A7C15)))
    return ((words >> np.uint64(40)).astype(np.float32) + 1) * np.float32(2.0**-24)


def _mix(x: Uint64Array) -> Uint64Array:
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
