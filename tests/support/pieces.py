"""Text cut into pieces, as it comes out of a model."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

cuts = st.lists(st.integers(1, 12), max_size=60)


def cut(text: str, sizes: Sequence[int]) -> list[str]:
    """Pieces of these lengths, then single characters."""
    pieces, at, rest = [], 0, iter(sizes)
    while at < len(text):
        size = next(rest, 1)
        pieces.append(text[at : at + size])
        at += size
    return pieces
