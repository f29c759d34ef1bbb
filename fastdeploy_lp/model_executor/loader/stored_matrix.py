"""Matrices that stay in their file until they are packed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from fastdeploy_lp.checkpoint.blocks import BLOCK_TYPES, BlockType
from fastdeploy_lp.checkpoint.errors import CheckpointError
from fastdeploy_lp.checkpoint.safetensors_file import is_finite

# Element types of weights, by their names in safetensors.
ELEMENTS: dict[str, np.dtype[Any]] = {
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F16": np.dtype("<f2"),
    "F32": np.dtype("<f4"),
    "F64": np.dtype("<f8"),
}
FloatArray = NDArray[np.float32]
Rows = slice | NDArray[np.int64]


class WeightsError(CheckpointError):
    """A weight that is missing, left over, of the wrong shape or type, or no number."""


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in an open file. begin: its first byte there. dtype: a name of `ELEMENTS` or `BLOCK_TYPES`."""

    path: Path
    stream: BinaryIO
    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int

    @property
    def blocks(self) -> BlockType | None:
        """The type of its blocks; None for numbers."""
        return BLOCK_TYPES.get(self.dtype)

    @property
    def row_bytes(self) -> int:
        """The bytes of a row of a matrix."""
        if self.blocks is not None:
            return self.blocks.row_bytes(self.shape[-1])
        return self.shape[-1] * ELEMENTS[self.dtype].itemsize

    def mapped(self) -> NDArray[Any]:
        """The numbers, or blocks [rows, bytes], as they are stored, in pages of the file that become memory as they are
        read.
        """
        dtype = np.dtype("u1") if self.blocks is not None else ELEMENTS[self.dtype]
        shape = self.shape if self.blocks is None else (self.shape[0], self.row_bytes)
        if 0 in shape:
            return np.zeros(shape, dtype)
        return np.memmap(self.stream, dtype, "r", self.begin, shape).view(np.ndarray)

    def floats(self, stored: NDArray[Any]) -> NDArray[np.float32]:
        """A copy of some numbers, or of some rows of blocks, as float32; raises WeightsError unless all are finite."""
        if self.blocks is not None:
            if not self.blocks.is_finite(stored):
                raise self.not_finite()
            return self.blocks.floats(stored)
        # A float64 may be too large for a float32: is_finite then finds an infinity.
        with np.errstate(over="ignore"):
            array = np.array(stored, np.float32, order="C")
        if not is_finite(array):
            raise self.not_finite()
        return array

    def not_finite(self) -> WeightsError:
        """The error to raise about a NaN or an infinity."""
        return WeightsError(f"{self.path}: tensor {self.name} holds NaN or infinity")

    def unreadable(self) -> WeightsError:
        """The error to raise about a file that ends early or cannot be read."""
        return WeightsError(f"{self.path}: tensor {self.name} cannot be read; give a complete copy of the model")


@dataclass(frozen=True)
class StoredMatrix:
    """Rows [out_features, in_features] of a matrix in an open file, of BF16, F16, F32 or blocks.

    NumPy reads it where an array is needed, as float32: `np.asarray(matrix)` raises WeightsError for a number that is
    not finite. The compiled operators read it row by row while they pack it. A matrix of some of the rows, or of the
    rows in another order, is made by an index and reads nothing.
    """

    tensor: StoredTensor
    rows: NDArray[np.int64]

    @classmethod
    def of(cls, tensor: StoredTensor) -> StoredMatrix:
        """All rows of a tensor of two dimensions."""
        return cls(tensor, np.arange(tensor.shape[0]))

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return len(self.rows), self.tensor.shape[1]

    @property
    def size(self) -> int:
        """The number of weights."""
        return len(self.rows) * self.tensor.shape[1]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rows: Rows) -> StoredMatrix:
        return replace(self, rows=self.rows[rows])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("weights are read from their file, which makes a copy of them")
        return self.tensor.floats(self.tensor.mapped()[self.rows]).astype(dtype or np.float32, copy=False)

    def addresses(self) -> NDArray[np.int64]:
        """The first byte of each row in the file."""
        found: NDArray[np.int64] = self.tensor.begin + self.rows * self.tensor.row_bytes
        return found


# A matrix in memory, or one that is read from its file when it is packed.
Matrix = FloatArray | StoredMatrix


def floats(matrix: Matrix) -> FloatArray:
    """The matrix in memory; raises WeightsError for one whose file holds numbers that are not finite."""
    return np.asarray(matrix, np.float32)
