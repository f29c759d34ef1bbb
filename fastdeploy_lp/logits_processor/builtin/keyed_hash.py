"""Pseudo-random numbers from a key, the last tokens and a token. Imports only numpy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

MASK = 2**64 - 1
MAX_KEY = 2**63 - 1
MAX_CONTEXT_WIDTH = 8

Words = NDArray[np.uint32]


def mix(value: int) -> int:
    """Returns the SplitMix64 finalizer of `value`."""
    value = (value + 0x9E3779B97F4A7C15) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def context_mixers(key: int, context: Sequence[int]) -> tuple[int, int]:
    """Returns two 32-bit numbers, the second one odd, from the key and all tokens of the context."""
    mixed = mix(key)
    for token in context:
        mixed = mix(mixed ^ token)
    return mixed >> 32, mixed & 0xFFFFFFFF | 1


def token_words(tokens: NDArray[Any], flips: NDArray[Any], factors: NDArray[Any]) -> Words:
    """Returns a pseudo-random word for each token after the context of two `context_mixers`; shapes broadcast."""
    words = tokens.astype(np.uint32) * np.uint32(0x9E3779B1) ^ flips.astype(np.uint32)
    words ^= words >> np.uint32(16)
    words *= np.uint32(0x21F0AAAD)
    words ^= words >> np.uint32(15)
    words = words * factors.astype(np.uint32)
    return words ^ (words >> np.uint32(15))
