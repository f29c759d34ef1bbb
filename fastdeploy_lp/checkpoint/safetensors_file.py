"""Safetensors files without tensors in memory: writes one tensor at a time, and reads headers."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastdeploy_lp.checkpoint.blocks import BLOCK_TYPES
from fastdeploy_lp.checkpoint.errors import CheckpointError


def is_finite(array: NDArray[np.floating[Any]]) -> bool:
    """Returns True if no element is NaN or infinite.

    A sum takes one pass without a copy, and NaN and infinity persist in it; a second pass runs only if the sum itself
    overflows.
    """
    with np.errstate(all="ignore"):
        return bool(np.isfinite(array.sum()) or np.isfinite(array).all())


DTYPE_BYTES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 8),
}

# Key of the header's metadata, a JSON object: the types of tensors that hold blocks, as U8 [rows, bytes].
_BLOCKS_KEY = "fastdeploy_lp.blocks"

_ALIGNMENT = 8
_LENGTH_BYTES = 8
# The format's own limit.
_MAX_HEADER_BYTES = 100_000_000
_INSTEAD = "give a complete copy of the model"


@dataclass(frozen=True)
class TensorHeader:
    """A tensor's type and shape; `begin` and `end` are its first byte in the file and the byte after its last one.

    dtype: a name of safetensors, or of BLOCK_TYPES for a matrix of blocks, whose shape is in weights.
    """

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def write_safetensors(
    path: Path,
    shapes: Mapping[str, tuple[int, ...]],
    pieces: Iterable[NDArray[Any]],
    *,
    blocks: Mapping[str, str] | None = None,
) -> None:
    """Writes float32 tensors under the names of `shapes`, in the same order.

    pieces: each tensor whole, or its rows in several consecutive arrays.
    blocks: types of the tensors whose arrays are blocks [rows, bytes], by the tensors' names.
    Raises ValueError if they do not add up to these shapes, OSError if `path` cannot be written.
    """
    blocks = blocks or {}
    stored = {name: _stored_shape(shape, blocks.get(name)) for name, shape in shapes.items()}
    with path.open("wb") as stream:
        stream.write(_header(stored, blocks))
        rest = iter(pieces)
        for name, shape in stored.items():
            for piece in _pieces_of(name, shape, rest):
                stream.write(np.ascontiguousarray(piece, dtype="u1" if name in blocks else "<f4").data)
        if next(rest, None) is not None:
            raise ValueError("there are more arrays than shapes")
        # The directory is renamed next; after a power failure its name must not exist without its contents.
        stream.flush()
        os.fsync(stream.fileno())


def _stored_shape(shape: tuple[int, ...], block: str | None) -> tuple[int, ...]:
    return shape if block is None else (*shape[:-1], BLOCK_TYPES[block].row_bytes(shape[-1]))


def _pieces_of(name: str, shape: tuple[int, ...], rest: Iterator[NDArray[Any]]) -> Iterator[NDArray[Any]]:
    rows = 0
    for piece in rest:
        if piece.shape == shape and not rows:
            yield piece
            return
        if piece.ndim != len(shape) or not shape or piece.shape[1:] != shape[1:] or rows + len(piece) > shape[0]:
            raise ValueError(f"{name} has shape {piece.shape}, announced was {shape}")
        yield piece
        rows += len(piece)
        if rows == shape[0]:
            return
    raise ValueError(f"{name} ends after {rows} rows, announced was {shape}")


def num_parameters(files: Iterable[Path]) -> int:
    """Counts the elements of all tensors in safetensors files; raises CheckpointError for any other file."""
    return sum(prod(tensor.shape) for path in files for tensor in read_header(path).values())


def require_whole(files: Sequence[Path]) -> None:
    """Raises CheckpointError if a file's length differs from its header, or a tensor is in two files."""
    found: dict[str, Path] = {}
    for path in files:
        for name in read_header(path):
            if name in found:
                raise CheckpointError(f"{path}: tensor {name} stands in {found[name].name} as well; {_INSTEAD}")
            found[name] = path


def read_header(path: Path) -> dict[str, TensorHeader]:
    """Returns the tensors of a safetensors file by name; their bytes are not read.

    Raises CheckpointError for a file that cannot be read, for a damaged header, and unless the tensors fill the file
    from the header to its end without gaps.
    """
    try:
        with path.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            length = int.from_bytes(stream.read(_LENGTH_BYTES), "little")
            # Checked before reading: a damaged length may be any number.
            if size < _LENGTH_BYTES or length > min(size - _LENGTH_BYTES, _MAX_HEADER_BYTES):
                raise ValueError(f"a header of {length} bytes does not fit a file of {size} bytes")
            table = json.loads(stream.read(length), object_pairs_hook=_without_repeats)
        if not isinstance(table, dict):
            raise ValueError("its header is no JSON object")
        blocks = _blocks(table.pop("__metadata__", None))
        # Offsets in a header are relative to its end.
        start = _LENGTH_BYTES + length
        tensors = {name: _tensor_header(name, entry, start) for name, entry in table.items()}
        for name, block in blocks.items():
            tensors[name] = _of_blocks(name, tensors.get(name), block)
        _require_no_gaps(tensors, start, size)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read as safetensors: {error.strerror or error}; {_INSTEAD}") from None
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: cannot be read as safetensors: {error}; {_INSTEAD}") from None
    return tensors


def read_format(path: Path) -> str | None:
    """Returns the framework that a safetensors file declares, "pt" or "pd"; None if it declares none readable."""
    try:
        with path.open("rb") as stream:
            length = int.from_bytes(stream.read(_LENGTH_BYTES), "little")
            if length > min(os.fstat(stream.fileno()).st_size, _MAX_HEADER_BYTES):
                return None
            found = json.loads(stream.read(length))["__metadata__"]["format"]
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        return None
    return found if isinstance(found, str) else None


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)} is there twice")
    return table


def _tensor_header(name: str, entry: Any, start: int) -> TensorHeader:
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
        raise ValueError(f"tensor {name} has no dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        raise ValueError(f"tensor {name} has the unknown dtype {dtype!r}")
    if not _are_sizes(shape):
        raise ValueError(f"tensor {name} has the shape {shape!r}")
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise ValueError(f"tensor {name} has the offsets {offsets!r}")
    needed = prod(shape) * DTYPE_BYTES[dtype]
    if offsets[1] - offsets[0] != needed:
        raise ValueError(f"tensor {name} has {offsets[1] - offsets[0]} bytes; {dtype} {shape} needs {needed}")
    return TensorHeader(dtype, tuple(shape), start + offsets[0], start + offsets[1])


def _blocks(metadata: Any) -> dict[str, Any]:
    """Returns the types of tensors that hold blocks."""
    text = metadata.get(_BLOCKS_KEY, "{}") if isinstance(metadata, dict) else "{}"
    found = json.loads(text) if isinstance(text, str) else None
    if not isinstance(found, dict):
        raise ValueError(f"{_BLOCKS_KEY} is no JSON object")
    return found


def _of_blocks(name: str, tensor: TensorHeader | None, block: Any) -> TensorHeader:
    """Returns the header of a matrix in weights."""
    if not isinstance(block, str) or block not in BLOCK_TYPES:
        raise ValueError(f"tensor {name} has blocks of the unknown type {block!r}")
    kind = BLOCK_TYPES[block]
    if tensor is None or tensor.dtype != "U8" or len(tensor.shape) != 2 or tensor.shape[1] % kind.bytes:
        raise ValueError(f"tensor {name} is no matrix of {block} blocks")
    rows, size = tensor.shape
    return TensorHeader(block, (rows, size // kind.bytes * kind.weights), tensor.begin, tensor.end)


def _are_sizes(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)


def _require_no_gaps(tensors: Mapping[str, TensorHeader], start: int, size: int) -> None:
    end = start
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)):
        if tensor.begin < end:
            raise ValueError(f"tensor {name} begins inside the one before it")
        if tensor.begin > end:
            raise ValueError(f"nobody owns the {tensor.begin - end} bytes before tensor {name}")
        if tensor.end > size:
            raise ValueError(f"truncated: tensor {name} ends at byte {tensor.end} of {size}")
        end = tensor.end
    if end < size:
        raise ValueError(f"nobody owns the last {size - end} bytes")


def _header(shapes: Mapping[str, tuple[int, ...]], blocks: Mapping[str, str]) -> bytes:
    # Some readers reject a file that does not declare its framework.
    metadata = {"format": "pt"}
    if blocks:
        metadata[_BLOCKS_KEY] = json.dumps(dict(blocks), separators=(",", ":"))
    table: dict[str, Any] = {"__metadata__": metadata}
    offset = 0
    for name, shape in shapes.items():
        dtype = "U8" if name in blocks else "F32"
        end = offset + prod(shape) * DTYPE_BYTES[dtype]
        table[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text
