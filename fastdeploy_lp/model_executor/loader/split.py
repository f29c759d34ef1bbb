"""The part of a checkpoint's tensor that a rank of a shared model reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Section:
    """`size` entries of an axis that ranks divide among them, in `pieces` that stay whole.

    Of pieces that are fewer than the ranks, each goes to several ranks that follow one another.
    """

    size: int
    pieces: int | None = None

    def part(self, rank: int, ranks: int) -> slice:
        """The entries of one rank, counted from the section's beginning; the last ranks may have fewer."""
        if self.pieces is not None and self.pieces < ranks:
            rank, ranks = rank * self.pieces // ranks, self.pieces
        each = part_size(self.size, ranks)
        return slice(min(rank * each, self.size), min((rank + 1) * each, self.size))


@dataclass(frozen=True)
class Split:
    """Ranks divide `axis`, which consists of consecutive `sections`; None for one of the axis's length.

    Each rank has its part of every section. An axis of None stays whole.
    """

    axis: int | None
    sections: tuple[Section, ...] | None = None

    def parts(self, shape: Sequence[int], rank: int, ranks: int) -> list[tuple[slice, ...]] | None:
        """Returns the slices of a tensor that a rank reads, to be joined along the axis; None for the whole tensor."""
        if self.axis is None or ranks == 1:
            return None
        parts, first = [], 0
        for section in self.sections or (Section(shape[self.axis]),):
            part = section.part(rank, ranks)
            entries = slice(first + part.start, first + part.stop)
            parts.append((*[slice(None)] * self.axis, entries))
            first += section.size
        return parts


WHOLE = Split(None)
# For a matrix [out_features, in_features]: a rank has a part of the outputs (ROWS) or of the inputs (COLUMNS).
ROWS = Split(0)
COLUMNS = Split(1)


def part_size(size: int, ranks: int) -> int:
    """Returns the entries per rank; the last ranks may have fewer."""
    return -(-size // ranks)
