"""A weight matrix as the compiled products read it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastdeploy_lp.model_executor.decoder_weights import Matrix
from fastdeploy_lp.model_executor.loader.stored_matrix import StoredMatrix
from fastdeploy_lp.model_executor.ops.structs import MAX_SECTIONS, FaultStruct, SectionStruct
from fastdeploy_lp.platforms.cpu import mapped_zeros

# `Row`, `Element` and `Fault` of `csrc/decoder/stored_rows.h`.
ROW = np.dtype([("at", "<i8"), ("file", "<i4"), ("element", "<i4")])
IN_MEMORY, IN_NO_PLACE = -1, -2
ZEROS = np.array((0, IN_NO_PLACE, 0), ROW)
ELEMENT_TYPES = {"F32": 0, "F16": 1, "BF16": 2, "Q4_K": 3, "Q5_K": 4, "Q6_K": 5}
# Elements of a 16-bit or longer type are numbers; the others are blocks, which are packed as they are.
FIRST_BLOCKS = ELEMENT_TYPES["Q4_K"]
NO_FAULT, UNREADABLE = 0, 1

# In an order of rows: a row of zeros.
NO_ROW = -1
# Outputs that are packed together.
PANEL = 32


class WeightFormat(IntEnum):
    """Storage format of a matrix: `Format` of `csrc/decoder/packed_weights.h`.

    Levels are steps of a scale from a minimum, both separate for each group of 32 inputs and each output. Levels of
    K formats have the scales of GGUF's K-quants.
    """

    FLOAT32 = 0
    FLOAT16 = 1
    BFLOAT16 = 2
    LEVELS8 = 3
    LEVELS5 = 4
    LEVELS4 = 5
    LEVELS6K = 6
    LEVELS5K = 7
    LEVELS4K = 8

    @property
    def bits(self) -> int:
        """Bits of a weight, scales and minima aside."""
        return _BITS[self]


_BITS = dict(zip(WeightFormat, (32, 16, 16, 8, 5, 4, 6, 5, 4), strict=True))


@dataclass(frozen=True)
class PackedWeight:
    """A matrix [out_features, in_features] in panels of 32 outputs.

    Its format is the shortest that holds its numbers: of float32 weights as they are, of quantized ones as
    `layers/quantization.py` rounds them. Weights of GGUF's blocks of 32 with one scale take 4, 5 or 8 bits either way
    and weights of 16-bit checkpoints 16, of which a step reads an eighth to a half of the bytes. K-quants keep their
    bits and their scales, and are not rounded. For products in bfloat16 the format is bfloat16.
    """

    format: WeightFormat
    out_features: int
    data: NDArray[np.uint8]

    @classmethod
    def of(
        cls,
        ops: ctypes.CDLL,
        *parts: Matrix,
        quantized: bool,
        bfloat16: bool = False,
        order: NDArray[np.int64] | None = None,
    ) -> PackedWeight:
        """Pack the rows of `parts`, one part after another, as they are, quantized or rounded to bfloat16.

        order: [out_features], the row of the parts that each output has, NO_ROW for zeros; by default all as they come.
        Rows of a file are read while they are packed, panel by panel, and no copy of them stays.
        Raises WeightsError for a file that cannot be read, or whose numbers are not finite.
        """
        (packed,) = cls.sections(ops, *parts, quantized=quantized, bfloat16=bfloat16, order=order, limit=1)
        return packed

    @classmethod
    def sections(
        cls,
        ops: ctypes.CDLL,
        *parts: Matrix,
        quantized: bool,
        bfloat16: bool = False,
        order: NDArray[np.int64] | None = None,
        limit: int = MAX_SECTIONS,
    ) -> list[PackedWeight]:
        """As `of`, in up to `limit` matrices of consecutive panels: K-quants of several types keep their bits."""
        arrays = [part if isinstance(part, StoredMatrix) else np.ascontiguousarray(part, np.float32) for part in parts]
        rows = np.concatenate([_rows(part) for part in arrays])
        if order is not None:
            rows = np.where(order == NO_ROW, ZEROS, rows[order])
        starts = _section_starts(rows)
        if bfloat16 or len(starts) > limit:
            starts = [0]
        ends, in_features = [*starts[1:], len(rows)], parts[0].shape[1]
        return [
            cls.of_rows(ops, rows[start:end], in_features, arrays, quantized=quantized, bfloat16=bfloat16)
            for start, end in zip(starts, ends, strict=True)
        ]

    @classmethod
    def of_rows(
        cls,
        ops: ctypes.CDLL,
        rows: NDArray[Any],
        in_features: int,
        parts: Sequence[Matrix] = (),
        *,
        quantized: bool,
        bfloat16: bool = False,
    ) -> PackedWeight:
        """Pack rows, each of them a `ROW` of `in_features`; `parts` are matrices to name in errors."""
        address, out_features = rows.ctypes.data_as(ctypes.c_void_p), len(rows)
        fault = FaultStruct()
        formats = 1 << WeightFormat.BFLOAT16
        if not bfloat16:
            formats = ops.fdlp_formats(address, in_features, out_features, quantized, ctypes.byref(fault))
            _require_packed(fault, rows, parts)
        ops.fdlp_packed_bytes.restype = ctypes.c_int64
        while True:
            # Later ones are shorter.
            chosen = WeightFormat(formats.bit_length() - 1)
            data: NDArray[Any] = mapped_zeros(ops.fdlp_packed_bytes(in_features, out_features, chosen), "uint8")
            target = data.ctypes.data_as(ctypes.c_void_p)
            which = (int(chosen), formats, quantized or bfloat16)
            formats = ops.fdlp_pack(target, address, in_features, out_features, *which, ctypes.byref(fault))
            _require_packed(fault, rows, parts)
            if formats >> chosen & 1:
                return cls(chosen, out_features, data)


def section_structs(parts: Sequence[PackedWeight]) -> ctypes.Array[SectionStruct]:
    """The parts, which follow one another, for `LinearStruct`; their data must outlive it."""
    structs, first = (SectionStruct * MAX_SECTIONS)(), 0
    for index, part in enumerate(parts):
        structs[index] = SectionStruct(first, part.format, part.data.ctypes.data)
        first += -(-part.out_features // PANEL)
    return structs


def _rows(matrix: Matrix) -> NDArray[Any]:
    """Returns the location of each row; an array must be contiguous and outlive its use."""
    rows = np.zeros(len(matrix), ROW)
    if isinstance(matrix, StoredMatrix):
        tensor = matrix.tensor
        rows["at"], rows["file"] = matrix.addresses(), tensor.stream.fileno()
        rows["element"] = ELEMENT_TYPES[tensor.dtype]
    else:
        rows["at"], rows["file"] = matrix.ctypes.data + np.arange(len(matrix)) * matrix.strides[0], IN_MEMORY
        rows["element"] = ELEMENT_TYPES["F32"]
    return rows


def _section_starts(rows: NDArray[Any]) -> list[int]:
    """Returns the first row of each run of panels with one type of blocks, or without blocks."""
    filled = np.concatenate([rows, np.repeat(ZEROS, -len(rows) % PANEL)]).reshape(-1, PANEL)
    zero = filled["file"] == IN_NO_PLACE
    lowest = np.where(zero, len(ELEMENT_TYPES), filled["element"]).min(axis=1)
    highest = np.where(zero, -1, filled["element"]).max(axis=1)
    # Of a panel of zeros, the lowest is above the highest.
    kinds = np.where((lowest == highest) & (highest >= FIRST_BLOCKS), highest, 0)
    kinds = np.where(highest < 0, kinds.max(initial=0), kinds)
    changes = np.flatnonzero(np.diff(kinds)) + 1
    return [0, *(changes * PANEL).tolist()]


def _require_packed(fault: FaultStruct, rows: NDArray[Any], parts: Sequence[Matrix]) -> None:
    """Raise the error of the tensor that the faulty row belongs to."""
    if fault.reason == NO_FAULT:
        return
    row = rows[fault.row]
    for part in parts:
        if (
            isinstance(part, StoredMatrix)
            and part.tensor.stream.fileno() == row["file"]
            and row["at"] in part.addresses()
        ):
            raise part.tensor.unreadable() if fault.reason == UNREADABLE else part.tensor.not_finite()
    raise RuntimeError(f"row {fault.row} of no file could not be packed")
