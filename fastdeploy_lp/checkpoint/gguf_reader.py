"""Reading the GGUF container, versions 2 and 3, little-endian.

gguf.GGUFReader makes an array of every string in the file, which takes seconds for a vocabulary, and silently reads
past the end of a truncated file. The format is small enough to read directly.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGUF_DEFAULT_ALIGNMENT, GGMLQuantizationType, GGUFValueType
from numpy.typing import NDArray

from fastdeploy_lp.checkpoint.gguf_file import GgufFile, GgufTensor

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_DIMENSIONS = 4

_SCALARS: dict[GGUFValueType, np.dtype[Any]] = {
    GGUFValueType.UINT8: np.dtype("u1"),
    GGUFValueType.INT8: np.dtype("i1"),
    GGUFValueType.UINT16: np.dtype("<u2"),
    GGUFValueType.INT16: np.dtype("<i2"),
    GGUFValueType.UINT32: np.dtype("<u4"),
    GGUFValueType.INT32: np.dtype("<i4"),
    GGUFValueType.FLOAT32: np.dtype("<f4"),
    GGUFValueType.BOOL: np.dtype("?"),
    GGUFValueType.UINT64: np.dtype("<u8"),
    GGUFValueType.INT64: np.dtype("<i8"),
    GGUFValueType.FLOAT64: np.dtype("<f8"),
}


def read_gguf(path: Path) -> GgufFile:
    """Reads the metadata and maps the tensors of a GGUF file; weights are read from disk when used.

    Raises CheckpointError when the file cannot be read, is no GGUF, or is truncated or damaged.
    """
    try:
        with path.open("rb") as stream:
            mapping = mmap(stream.fileno(), 0, access=ACCESS_READ)
    except (OSError, ValueError) as error:
        raise GgufFile(path, {}, {}).error(f"cannot be read ({error})") from error
    file = GgufFile(path, {}, {}, mapping)
    data = np.frombuffer(mapping, np.uint8)
    if data[:4].tobytes() != _MAGIC:
        raise file.error("not a GGUF file")
    cursor = _Cursor(data, offset=4)
    try:
        _check_version(file, cursor.u32())
        for tensor in _read_header(file, cursor):
            file.tensors[tensor.name] = _map_tensor(file, tensor, cursor)
    except EOFError as error:
        raise file.error(f"truncated: it ends inside {cursor.reading}") from error
    return file


class _Cursor:
    """Reads consecutive values; raises EOFError at the end of the file.

    reading: what is being read, for the error message.
    """

    def __init__(self, data: NDArray[np.uint8], offset: int) -> None:
        self.data = data
        self.offset = offset
        self.reading = "the header"

    def take(self, size: int) -> NDArray[np.uint8]:
        end = self.offset + size
        if end > self.data.size:
            raise EOFError
        taken = self.data[self.offset : end]
        self.offset = end
        return taken

    def u32(self) -> int:
        return int.from_bytes(self.take(4), "little")

    def u64(self) -> int:
        return int.from_bytes(self.take(8), "little")

    def text(self) -> str:
        return self.take(self.u64()).tobytes().decode("utf-8")


@dataclass(frozen=True)
class _TensorHeader:
    """offset: absolute, in bytes. shape: outermost first."""

    name: str
    shape: tuple[int, ...]
    quant: int
    offset: int


def _check_version(file: GgufFile, version: int) -> None:
    if version not in _VERSIONS:
        # The file does not record its byte order; in the wrong order, a small version number has an empty low half.
        reason = "big-endian" if version & 0xFFFF == 0 else f"GGUF version {version}"
        raise file.error(f"{reason} is not supported", "give a little-endian GGUF 2 or 3 file")


def _read_header(file: GgufFile, cursor: _Cursor) -> list[_TensorHeader]:
    """Fills in the metadata and lists the tensors."""
    tensor_count, metadata_count = cursor.u64(), cursor.u64()
    try:
        for _ in range(metadata_count):
            key = cursor.text()
            cursor.reading = f"metadata {key}"
            file.metadata[key] = _read_value(cursor)
        cursor.reading = "the tensor list"
        tensors = [_read_tensor_header(cursor) for _ in range(tensor_count)]
    except ValueError as error:
        raise file.error(f"damaged in {cursor.reading} ({error})") from error
    alignment = file.optional("general.alignment", int, GGUF_DEFAULT_ALIGNMENT)
    if alignment < 1:
        raise file.error(f"metadata general.alignment is {alignment}")
    start = -(-cursor.offset // alignment) * alignment
    return [_TensorHeader(each.name, each.shape, each.quant, start + each.offset) for each in tensors]


def _read_value(cursor: _Cursor) -> Any:
    kind = GGUFValueType(cursor.u32())
    if kind is GGUFValueType.STRING:
        return cursor.text()
    if kind is not GGUFValueType.ARRAY:
        return _read_scalars(cursor, kind, 1)[0]
    kind = GGUFValueType(cursor.u32())
    count = cursor.u64()
    if kind is GGUFValueType.STRING:
        return [cursor.text() for _ in range(count)]
    return _read_scalars(cursor, kind, count)


def _read_scalars(cursor: _Cursor, kind: GGUFValueType, count: int) -> list[Any]:
    if kind not in _SCALARS:
        raise ValueError(f"array of {kind.name}")
    dtype = _SCALARS[kind]
    values: list[Any] = cursor.take(dtype.itemsize * count).view(dtype).tolist()
    return values


def _read_tensor_header(cursor: _Cursor) -> _TensorHeader:
    """Reads one header; its offset is still relative to the first tensor."""
    name = cursor.text()
    dimensions = cursor.u32()
    if not 1 <= dimensions <= _MAX_DIMENSIONS:
        raise ValueError(f"tensor {name} has {dimensions} dimensions")
    shape = tuple(cursor.u64() for _ in range(dimensions))[::-1]
    if 0 in shape:
        raise ValueError(f"tensor {name} has the shape {list(shape)}")
    return _TensorHeader(name, shape, quant=cursor.u32(), offset=cursor.u64())


def _map_tensor(file: GgufFile, header: _TensorHeader, cursor: _Cursor) -> GgufTensor:
    cursor.reading = f"tensor {header.name}"
    if header.name in file.tensors:
        raise file.error(f"{cursor.reading} is there twice")
    try:
        quant = GGMLQuantizationType(header.quant)
    except ValueError as error:
        raise file.error(f"{cursor.reading} has the unknown quantization type {header.quant}") from error
    block, block_bytes = GGML_QUANT_SIZES[quant]
    if header.shape[-1] % block:
        raise file.error(f"{cursor.reading}: rows of {header.shape[-1]} are no whole {quant.name} blocks of {block}")
    byte_shape = (*header.shape[:-1], header.shape[-1] // block * block_bytes)
    cursor.offset = header.offset
    return GgufTensor(header.name, header.shape, quant, cursor.take(prod(byte_shape)).reshape(byte_shape))
