"""Arguments of the kernels on rows, field by field as in their sources, and the scratch that their passes share."""

from __future__ import annotations

from ctypes import Structure, c_int32, c_void_p

# As in `kernels/parts.cuh`: bounds of the tokens of a row that a block works on, the tokens of a strip, and 64-bit
# words of scratch for a row, a part and a strip of it.
LEAST_PART, MOST_PART, STRIP = 4096, 32_768, 512
ROW_WORDS, PART_WORDS, STRIP_WORDS = 2048 + 8, 3, 3
WORD_BYTES = 8
# Of a launch, if parts may be that long: some times what a large GPU runs at once.
BLOCKS = 2048


def span_of(rows: int, size: int) -> int:
    """Returns the tokens of a part where a launch works on so many rows."""
    parts = max(1, BLOCKS // max(1, rows))
    return min(max(-(-size // (parts * LEAST_PART)) * LEAST_PART, LEAST_PART), MOST_PART)


def parts_of(rows: int, size: int) -> int:
    """Returns the number of parts of each of so many rows."""
    return -(-size // span_of(rows, size))


def scratch_bytes(rows: int, size: int) -> int:
    """Returns the bytes that passes over so many rows share; `fdlp_scan_rows` prepares them."""
    words = ROW_WORDS + parts_of(rows, size) * PART_WORDS + -(-size // STRIP) * STRIP_WORDS
    return rows * words * WORD_BYTES


def list_bytes(rows: int, size: int, count: int) -> int:
    """Returns the bytes of the parts' lists of so many tokens."""
    return rows * parts_of(rows, size) * count * WORD_BYTES


class RowsArgument(Structure):
    """`Rows` of `parts.cuh`."""

    _fields_ = (
        ("logits", c_void_p),
        ("rows", c_void_p),
        ("scratch", c_void_p),
        ("size", c_int32),
        ("span", c_int32),
        ("selects", c_int32),
    )


class DrawsArgument(Structure):
    """`Draws` of `filters.cuh`."""

    _fields_ = (
        ("rows", RowsArgument),
        ("temperature", c_void_p),
        ("min_p", c_void_p),
        ("top_k", c_void_p),
        ("top_p", c_void_p),
    )


class ListsArgument(Structure):
    """`Lists` of `lists.cuh`."""

    _fields_ = (("listed", c_void_p), ("count", c_int32))


class ListingArgument(Structure):
    """`Listing` of `logprobs.cuh`."""

    _fields_ = (
        ("rows", RowsArgument),
        ("lists", ListsArgument),
        ("chosen", c_void_p),
        ("normalize", c_int32),
    )


class CutsArgument(Structure):
    """`Cuts` of `cuts.cuh`."""

    _fields_ = (("rows", RowsArgument), ("values", c_void_p), ("cut", c_int32))


class ComparisonArgument(Structure):
    """`Comparison` of `compare.cuh`."""

    _fields_ = (("rows", RowsArgument), ("weights", c_void_p), ("inverses", c_void_p))
