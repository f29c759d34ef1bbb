"""Where the numbers and texts of a GGUF file's structure stand."""

from __future__ import annotations

Place = tuple[int, int]
"""Offset and size in bytes."""

SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
TEXT, ARRAY = 8, 9
# The first ones of a long array stand for all.
ELEMENTS = 8


class _Walk:
    """Reads a file from its beginning and notes what it read."""

    def __init__(self, content: bytes) -> None:
        self._content, self._at = content, 4
        self.numbers: list[Place] = []
        self.texts: list[Place] = []

    def number(self, size: int, *, noted: bool = True) -> int:
        """The next number; raises ValueError at the end of the file."""
        if self._at + size > len(self._content):
            raise ValueError("cut off")
        value = int.from_bytes(self._content[self._at : self._at + size], "little")
        if noted:
            self.numbers.append((self._at, size))
        self._at += size
        return value

    def text(self, *, noted: bool = True) -> None:
        """The next text."""
        size = self.number(8, noted=noted)
        if noted:
            self.texts.append((self._at, min(size, 64)))
        self._at += size

    def value(self, kind: int, *, noted: bool = True) -> None:
        """The next value of a type."""
        if kind == TEXT:
            self.text(noted=noted)
        elif kind == ARRAY:
            inner, count = self.number(4), self.number(8)
            for index in range(min(count, 1 << 20)):
                self.value(inner, noted=index < ELEMENTS)
        else:
            self.number(SIZES.get(kind, 4), noted=noted)


def _walked(content: bytes) -> _Walk:
    walk = _Walk(content)
    walk.number(4)
    tensors, entries = walk.number(8), walk.number(8)
    for _ in range(min(entries, 1 << 16)):
        walk.text()
        walk.value(walk.number(4))
    for _ in range(min(tensors, 1 << 16)):
        walk.text()
        for _ in range(min(walk.number(4), 8)):
            walk.number(8)
        walk.number(4)
        walk.number(8)
    return walk


def number_places(content: bytes) -> list[Place]:
    """Counts, sizes, types, offsets and values; raises ValueError for a file that cannot be walked through."""
    return _walked(content).numbers


def text_places(content: bytes) -> list[Place]:
    """Names and texts, cut to 64 bytes; raises ValueError as above."""
    return _walked(content).texts
