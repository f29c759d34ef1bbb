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
from fastdeploy_lp.model_executor.ops.structs import FaultStruct
from fastdeploy_lp.platforms.cpu import mapped_zeros

# `Row`, `Element` and `Fault` of `csrc/decoder/stored_rows.h`.
ROW = np.dtype([("at", "<i8"), ("file", "<i4"), ("element", "<i4")])
IN_MEMORY, IN_NO_PLACE = -1, -2
ZEROS = np.array((0, IN_NO_PLACE, 0), ROW)
ELEMENT_TYPES = {"F32": 0, "F16": 1, "BF16": 2}
NO_FAULT, UNREADABLE = 0, 1

# In an order of rows: a row of zeros.
NO_ROW = -1


class WeightFormat(IntEnum):
    """Storage format of a matrix: `Format` of `csrc/decoder/packed_weights.h`.

    Levels are steps of a scale from a minimum, both separate for each group of 32 inputs and each output.
    """

    FLOAT32 = 0
    FLOAT16 = 1
    BFLOAT16 = 2
    LEVELS8 = 3
    LEVELS4 = 4

    @property
    def bits(self) -> int:
        """Bits of a weight, scales and minima aside."""
        return {WeightFormat.FLOAT32: 32, WeightFormat.LEVELS8: 8, WeightFormat.LEVELS4: 4}.get(self, 16)


@dataclass(frozen=True)
class PackedWeight:
    """A matrix [out_features, in_features] in panels of 32 outputs.

    Its format is the shortest that holds its numbers: of float32 weights as they are, of quantized ones as
    `layers/quantization.py` rounds them. Weights of GGUF's blocks of 32 with one scale take 4 or 8 bits either way and
    those of 16-bit checkpoints 16, of which a step reads an eighth to a half of the bytes.
    """

    format: WeightFormat
    data: NDArray[np.uint8]

    @classmethod
    def of(
        cls, ops: ctypes.CDLL, *parts: Matrix, quantized: bool, order: NDArray[np.int64] | None = None
    ) -> PackedWeight:
        """Pack the rows of `parts`, one part after another, as they are or quantized.

        order: [out_features], the row of the parts that each output has, NO_ROW for zeros; by default all as they come.
        Rows of a file are read while they are packed, panel by panel, and no copy of them stays.
        Raises WeightsError for a file that cannot be read, or whose numbers are not finite.
        """
        arrays = [part if isinstance(part, StoredMatrix) else np.ascontiguousarray(part, np.float32) for part in parts]
        rows = np.concatenate([_rows(part) for part in arrays])
        if order is not None:
            rows = np.where(order == NO_ROW, ZEROS, rows[order])
        address, in_features, out_features = rows.ctypes.data_as(ctypes.c_void_p), parts[0].shape[1], len(rows)
        fault = FaultStruct()
        chosen = ops.fdlp_weight_format(address, in_features, out_features, quantized, ctypes.byref(fault))
        _require_packed(fault, rows, parts)
        ops.fdlp_packed_bytes.restype = ctypes.c_int64
        data: NDArray[Any] = mapped_zeros(ops.fdlp_packed_bytes(in_features, out_features, chosen), "uint8")
        target = data.ctypes.data_as(ctypes.c_void_p)
        ops.fdlp_pack(target, address, in_features, out_features, chosen, ctypes.byref(fault))
        _require_packed(fault, rows, parts)
        return cls(WeightFormat(chosen), data)


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
