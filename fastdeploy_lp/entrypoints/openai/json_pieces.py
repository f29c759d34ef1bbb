"""JSON in pieces: long members of an answer are encoded while they are sent, never all at once."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import msgspec
import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

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


Pieces = Iterable[bytes]
"""The bytes of one JSON value; each piece takes much less than a millisecond to encode, and may be b""."""


@dataclass(frozen=True)
class PiecedObject:
    """A JSON object: the fields of `model`, then `members`, which replace its fields of the same names.

    Can be iterated once.
    """

    model: BaseModel
    members: Mapping[str, Pieces] = field(default_factory=dict)

    def __iter__(self) -> Iterator[bytes]:
        head = self.model.model_dump_json(exclude=set(self.members)).encode()
        if not self.members:
            yield head
            return
        yield head[:-1]
        yield from _members(self.members, b"" if head == b"{}" else b",")
        yield b"}"


def members(named: Mapping[str, Pieces]) -> Iterator[bytes]:
    """Yields a JSON object of these members."""
    yield b"{"
    yield from _members(named, b"")
    yield b"}"


def _members(named: Mapping[str, Pieces], separator: bytes) -> Iterator[bytes]:
    for name, pieces in named.items():
        yield separator + msgspec.json.encode(name) + b":"
        yield from pieces
        separator = b","


def array(values: Iterable[Pieces]) -> Iterator[bytes]:
    """Yields a JSON array of these values."""
    yield b"["
    separator = b""
    for value in values:
        yield separator
        yield from value
        separator = b","
    yield b"]"


def encoded(values: Iterable[object]) -> Iterator[Pieces]:
    """Returns each value as one piece."""
    return ((msgspec.json.encode(value),) for value in values)
