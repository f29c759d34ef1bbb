"""Safetensors files without tensors in memory: written one tensor at a time, and measured by their headers."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastdeploy_lp.checkpoint.errors import CheckpointError

_ALIGNMENT = 8
_FLOAT32_BYTES = 4
_LENGTH_BYTES = 8


def write_safetensors(path: Path, shapes: Mapping[str, tuple[int, ...]], arrays: Iterable[NDArray[np.float32]]) -> None:
    """Write float32 `arrays` under the names of `shapes`, in the same order and of these shapes.

    Raises ValueError when an array has another shape or their number differs, OSError when `path` cannot be written.
    """
    with path.open("wb") as stream:
        stream.write(_header(shapes))
        for (name, shape), array in zip(shapes.items(), arrays, strict=True):
            if array.shape != shape:
                raise ValueError(f"{name} has shape {array.shape}, announced was {shape}")
            stream.write(np.ascontiguousarray(array, dtype="<f4").data)
        # The directory is renamed into place next: after a power cut the name must not outlive the contents.
        stream.flush()
        os.fsync(stream.fileno())


def num_parameters(files: Iterable[Path]) -> int:
    """Elements of all tensors in safetensors files; raises CheckpointError for a file that is none."""
    return sum(prod(tensor["shape"]) for path in files for tensor in _read_header(path).values())


def _read_header(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as stream:
            length = int.from_bytes(stream.read(_LENGTH_BYTES), "little")
            if length > path.stat().st_size:
                raise ValueError("its header is longer than the file")
            table = json.loads(stream.read(length))
            table.pop("__metadata__", None)
            # Looked at here, so that a damaged header is told with the name of its file.
            return {name: {"shape": [int(size) for size in tensor["shape"]]} for name, tensor in table.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path}: cannot be read as safetensors: {error}") from None


def _header(shapes: Mapping[str, tuple[int, ...]]) -> bytes:
    # Some readers refuse a file that does not say which framework wrote it.
    table: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape in shapes.items():
        end = offset + prod(shape) * _FLOAT32_BYTES
        table[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text
