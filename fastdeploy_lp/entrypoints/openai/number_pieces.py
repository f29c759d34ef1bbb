"""Arrays of numbers as pieces of JSON."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

from fastdeploy_lp.entrypoints.openai.json_pieces import Pieces, array

# A multiple of three, so that each piece is a whole number of base64 groups.
NUMBERS_IN_BASE64 = 3 << 12


def of_numbers(numbers: NDArray[np.float32], in_base64: bool) -> Pieces:
    """Returns float32 [n] or [rows, n] as lists, or as little-endian bytes in base64, row by row."""
    if in_base64:
        return _base64(numbers.reshape(-1))
    if numbers.ndim == 1:
        return (msgspec.json.encode(row.tolist()) for row in numbers[None])
    return array((msgspec.json.encode(row.tolist()),) for row in numbers)


def _base64(flat: NDArray[np.float32]) -> Iterator[bytes]:
    yield b'"'
    for begin in range(0, len(flat), NUMBERS_IN_BASE64):
        yield base64.b64encode(flat[begin : begin + NUMBERS_IN_BASE64].astype("<f4").tobytes())
    yield b'"'
