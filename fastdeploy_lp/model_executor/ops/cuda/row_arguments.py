"""Arguments of the kernels on rows, field by field as in their sources, and the scratch that their passes share."""

from __future__ import annotations

from ctypes import Structure, c_int32, c_void_p

# As in `kernels/parts.cuh`: the tokens of a row that a block works on, and 64-bit words of scratch for a row and for a
# part of it.
PART = 4096
ROW_WORDS, PART_WORDS = 2048 + 8, 3 + 3 * (PART // 512)
WORD_BYTES = 8


def parts_of(size: int) -> int:
    """Returns the number of parts of a row."""
    return -(-size // PART)


def scratch_bytes(rows: int, size: int) -> int:
    """Returns the bytes that passes over so many rows share; `fdlp_scan_rows` prepares them."""
    return rows * (ROW_WORDS + parts_of(size) * PART_WORDS) * WORD_BYTES


def list_bytes(rows: int, size: int, count: int) -> int:
    """Returns the bytes of the parts' lists of so many tokens."""
    return rows * parts_of(size) * count * WORD_BYTES


class RowsArgument(Structure):
    """`Rows` of `parts.cuh`."""

    _fields_ = (
        ("logits", c_void_p),
        ("rows", c_void_p),
        ("scratch", c_void_p),
        ("size", c_int32),
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
