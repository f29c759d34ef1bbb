"""Contents of a GGUF file."""

from __future__ import annotations

from dataclasses import dataclass
from mmap import MADV_DONTNEED, mmap
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from gguf.constants import GGMLQuantizationType
from numpy.typing import NDArray

from fastdeploy_lp.checkpoint.errors import CheckpointError

_T = TypeVar("_T")
_D = TypeVar("_D")


@dataclass(frozen=True)
class GgufTensor:
    """One stored tensor.

    shape: in elements, outermost dimension first (GGUF itself writes the innermost first).
    data: the stored bytes, uint8, `shape` with its last dimension replaced by the bytes of one row; a view of the file.
    """

    name: str
    shape: tuple[int, ...]
    quant: GGMLQuantizationType
    data: NDArray[np.uint8]


@dataclass(frozen=True)
class GgufFile:
    """A GGUF file: metadata values are int, float, bool, str or flat lists of those.

    mapping: the mapped file; the tensors are views of it.
    """

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, GgufTensor]
    mapping: mmap | None = None

    def release(self) -> None:
        """Returns the pages read so far to the kernel; tensors are read from disk again when used."""
        if self.mapping is not None:
            self.mapping.madvise(MADV_DONTNEED)

    def required(self, key: str, kind: type[_T]) -> _T:
        """Returns the metadata value of `key`. Raises CheckpointError if it is missing or not a `kind`."""
        if key not in self.metadata:
            raise self.error(f"no metadata {key}")
        value = self.metadata[key]
        # isinstance would accept a bool as an int.
        if type(value) is not kind:
            raise self.error(f"metadata {key} is {type(value).__name__}, not {kind.__name__}")
        return value

    def optional(self, key: str, kind: type[_T], default: _D) -> _T | _D:
        """Returns the metadata value of `key`, `default` if missing. Raises CheckpointError if it is not a `kind`."""
        return self.required(key, kind) if key in self.metadata else default

    def texts(self, key: str) -> list[str]:
        """Returns the list of strings under `key`. Raises CheckpointError if it is missing or of another type."""
        values = self.required(key, list)
        if not all(type(value) is str for value in values):
            raise self.error(f"metadata {key} is not a list of strings")
        return values

    def error(self, reason: str, instead: str = "give a complete GGUF file of a supported model") -> CheckpointError:
        """Returns the error to raise about this file."""
        return CheckpointError(f"{self.path}: {reason}; {instead}")
