"""The C++ harnesses in `native/`: a step's matrix products by the package's kernels and by oneDNN, and memory read.

Compiled against the package's own sources and, where its headers are given, against Paddle's oneDNN.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import weakref
from ctypes import POINTER, c_float, c_int32, c_void_p
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import ml_dtypes
import numpy as np
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray
from random_model import random_blocks

from fastdeploy_lp.config.tile_choice import tile_choice
from fastdeploy_lp.model_executor.ops.build import FLAGS, SOURCE_DIRECTORY
from fastdeploy_lp.model_executor.ops.packed_weight import (
    ELEMENT_TYPES,
    IN_MEMORY,
    ROW,
    PackedWeight,
    WeightFormat,
    section_structs,
)
from fastdeploy_lp.model_executor.ops.structs import LinearStruct
from fastdeploy_lp.platforms.cpu import mapped_zeros

# The lowest and the highest level.
LEVELS = {WeightFormat.LEVELS4: (0, 15), WeightFormat.LEVELS5: (0, 31), WeightFormat.LEVELS8: (-127, 127)}
# K-quants cannot be made of any weights.
BLOCKS = {
    WeightFormat.LEVELS4K: GGMLQuantizationType.Q4_K,
    WeightFormat.LEVELS5K: GGMLQuantizationType.Q5_K,
    WeightFormat.LEVELS6K: GGMLQuantizationType.Q6_K,
}
NATIVE = Path(__file__).parent / "native"
# Of prepared activations, at most: `Activations` of `linear.h`.
BYTES_PER_INPUT = 4
GROUP, PANEL, LINE_BYTES, PIECE_BYTES = 32, 32, 64, 512
# Far larger than any cache of these processors, and at least eight times the cache size that the kernel reports.
STREAM_BYTES = 512 << 20


class CompileError(RuntimeError):
    """A harness could not be compiled, and why."""


@dataclass(frozen=True)
class Shape:
    """One matrix product of a step: [rows, in_features] times [in_features, out_features], its weights in `format`."""

    in_features: int
    out_features: int
    format: WeightFormat


def compile_native(directory: Path, *, quickly: bool = False) -> Path:
    """Returns the harness of our kernels and of memory bandwidth in `directory`, compiled if missing.

    quickly: without optimization, for a run whose times do not count.

    Raises CompileError if there is no compiler or it fails.
    """
    sources = [NATIVE / "products.cpp", NATIVE / "stream.cpp"]
    return _compile(directory / "products.so", sources, "-I", str(SOURCE_DIRECTORY), *(["-O0"] if quickly else []))


def compile_onednn(directory: Path, include: Path, library: Path) -> Path:
    """The harness of oneDNN's products, likewise; `include` holds the headers of the release that `library` is.

    Raises CompileError when there is no compiler or it fails, or the headers are not there.
    """
    target = directory / "onednn_products.so"
    if target.is_file():
        return target
    headers = directory / "include"
    config = headers / "oneapi" / "dnnl" / "dnnl_config.h"
    try:
        shutil.copytree(include, headers)
        config.write_text(_with_openmp(config.read_text()))
    except OSError as error:
        raise CompileError(f"no oneDNN headers in {include}: {error}") from error
    link = ["-I", str(SOURCE_DIRECTORY), "-I", str(headers), str(library), f"-Wl,-rpath,{library.parent}"]
    return _compile(target, [NATIVE / "onednn_products.cpp"], *link)


def _with_openmp(config: str) -> str:
    """The public headers are made for TBB and SYCL; Paddle's library runs on OpenMP and no GPU."""
    wanted = {"CPU_THREADING": "OMP", "CPU": "OMP", "GPU": "NONE"}
    for device, runtime in wanted.items():
        name = f"DNNL_{device}_RUNTIME"
        config = re.sub(rf"^#define {name} \w+$", f"#define {name} DNNL_RUNTIME_{runtime}", config, flags=re.M)
    return config


def _compile(target: Path, sources: list[Path], *options: str) -> Path:
    if target.is_file():
        return target
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++") or shutil.which("clang++")
    if compiler is None:
        raise CompileError("no C++ compiler on PATH")
    command = [compiler, *FLAGS, *map(str, sources), *options, "-o", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CompileError(f"{compiler} ended with status {done.returncode}: {done.stderr.strip()[-2000:]}")
    return target


class ActivationsStruct(ctypes.Structure):
    """`Activations` of `linear.h`."""

    _fields_ = (("values", c_void_p), ("q", c_void_p), ("scale", c_void_p), ("total", c_void_p), ("sums", c_void_p))


class ProductStruct(ctypes.Structure):
    """`Product` of `products.cpp`."""

    _fields_ = (("layer", LinearStruct), ("x", ActivationsStruct), ("out", c_void_p))


class OneDnnStruct(ctypes.Structure):
    """`Given` of `onednn_products.cpp`."""

    _fields_ = (
        ("in_features", c_int32),
        ("out_features", c_int32),
        ("weights", c_void_p),
        ("x", c_void_p),
        ("to", POINTER(c_float)),
    )


class Products(Protocol):
    """The products of one step, ready to be computed again and again."""

    def multiply(self) -> None:
        """Computes all of them."""


class Numbers(Protocol):
    """Source of the weights and activations of the products."""

    def weight(self, shape: Shape) -> NDArray[np.float32]:
        """Returns weights [out_features, in_features] that are packed in the shape's format."""

    def blocks(self, shape: Shape) -> NDArray[np.uint8]:
        """Returns the blocks of a K-quant, a row of bytes for each output."""

    def inputs(self, rows: int, columns: int) -> NDArray[np.float32]:
        """Returns activations [rows, columns]."""


class RandomNumbers:
    """Random `Numbers`, the same ones in each run."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(0)

    def weight(self, shape: Shape) -> NDArray[np.float32]:
        """Returns weights of 16 to 255 levels, which every group of inputs has, or of 16 bits."""
        if shape.format in LEVELS:
            least, most = LEVELS[shape.format]
            levels = self._random.integers(least, most + 1, (shape.out_features, shape.in_features))
            levels[:, ::GROUP], levels[:, 1::GROUP] = least, most
            return (levels * np.float32(1 / 16)).astype(np.float32)
        weight = _random_matrix(self._random, shape.out_features, shape.in_features)
        narrow = {WeightFormat.BFLOAT16: ml_dtypes.bfloat16, WeightFormat.FLOAT16: np.float16}.get(shape.format)
        return weight if narrow is None else weight.astype(narrow).astype(np.float32)

    def blocks(self, shape: Shape) -> NDArray[np.uint8]:
        """See `Numbers`."""
        return random_blocks(self._random, (shape.out_features, shape.in_features), BLOCKS[shape.format])

    def inputs(self, rows: int, columns: int) -> NDArray[np.float32]:
        """See `Numbers`; the same ones for each call with this size."""
        return _random_matrix(np.random.default_rng((1, rows, columns)), rows, columns)


class OurProducts:
    """The products by the package's own kernels, each with its own packed weights.

    `digits` is 0 for float32 or `bfloat16`, 1 or 2 for packed weights with activations of this many 8-bit digits. All
    products of one shape share activations and result; `multiply` does not include quantizing the activations. `ops` is
    the package's library, `library` the path that `compile_native` returned.
    """

    def __init__(
        self,
        library: Path,
        ops: ctypes.CDLL,
        shapes: list[Shape],
        digits: int,
        *,
        bfloat16: bool = False,
        numbers: Numbers | None = None,
    ) -> None:
        self._library, self._ops, self._digits, self._bfloat16 = ctypes.CDLL(str(library)), ops, digits, bfloat16
        self._library.bench_choose_tiles(int(tile_choice()))
        self._shapes = shapes
        self._numbers: Numbers = RandomNumbers() if numbers is None else numbers
        self.weights: dict[Shape, NDArray[np.float32]] = {}
        packed: dict[Shape, PackedWeight] = {}
        for shape in dict.fromkeys(shapes):
            packed[shape], self.weights[shape] = self._pack(shape)
        self._packed = [replace(packed[shape], data=_copy(packed[shape].data)) for shape in shapes]

    @property
    def weight_bytes(self) -> int:
        """Bytes of packed weights that one step reads."""
        return sum(part.data.nbytes for part in self._packed)

    def rows(self, rows: int) -> OurRows:
        """The same products for so many rows of activations."""
        return OurRows(self._library, self._shapes, self._packed, (self._digits, self._bfloat16), rows, self._numbers)

    def _pack(self, shape: Shape) -> tuple[PackedWeight, NDArray[np.float32]]:
        if shape.format in BLOCKS and not self._bfloat16:
            return self._pack_blocks(shape)
        weight = self._numbers.weight(shape)
        packed = PackedWeight.of(self._ops, weight, quantized=self._digits > 0, bfloat16=self._bfloat16)
        if packed.format != shape.format:
            raise ValueError(f"weights of {shape} were packed as {packed.format.name}")
        return packed, weight

    def _pack_blocks(self, shape: Shape) -> tuple[PackedWeight, NDArray[np.float32]]:
        blocks, kind = self._numbers.blocks(shape), BLOCKS[shape.format]
        rows = np.zeros(shape.out_features, ROW)
        rows["at"], rows["file"] = blocks.ctypes.data + np.arange(len(rows)) * blocks.strides[0], IN_MEMORY
        rows["element"] = ELEMENT_TYPES[kind.name]
        packed = PackedWeight.of_rows(self._ops, rows, shape.in_features, quantized=self._digits > 0)
        return packed, dequantize(blocks, kind)


class OurRows:
    """`OurProducts` for one number of rows. `inputs` and `outputs`, by shape, are [rows, in_features] and, with columns
    filled up to whole panels, [rows, out_features]."""

    def __init__(
        self,
        library: ctypes.CDLL,
        shapes: list[Shape],
        packed: list[PackedWeight],
        precision: tuple[int, bool],
        rows: int,
        numbers: Numbers,
    ) -> None:
        digits, bfloat16 = precision
        self._library, self._rows = library, rows
        self.inputs = {shape: numbers.inputs(rows, shape.in_features) for shape in shapes}
        self.outputs = {shape: np.zeros((rows, _round_up(shape.out_features)), np.float32) for shape in shapes}
        self._kept: list[Any] = [packed]
        prepared = {shape: self._activations(shape) for shape in self.inputs}
        self._structs = (ProductStruct * len(shapes))(
            *(
                ProductStruct(
                    LinearStruct(
                        shape.in_features, shape.out_features, digits, 1, section_structs([weight]), None, bfloat16
                    ),
                    prepared[shape],
                    self.outputs[shape].ctypes.data,
                )
                for shape, weight in zip(shapes, packed, strict=True)
            )
        )
        for struct in self._structs:
            library.bench_prepare(ctypes.byref(struct), rows)

    def multiply(self) -> None:
        """See `Products`."""
        self._library.bench_multiply(self._structs, len(self._structs), self._rows)

    def _activations(self, shape: Shape) -> ActivationsStruct:
        groups = -(-shape.in_features // GROUP)
        q = np.zeros((self._rows, groups, BYTES_PER_INPUT * GROUP), np.int8)
        scale, total = (np.zeros((self._rows, groups), np.float32) for _ in range(2))
        sums = np.zeros((self._rows, groups, 2), np.int32)
        self._kept += [q, scale, total, sums]
        return ActivationsStruct(*(array.ctypes.data for array in (self.inputs[shape], q, scale, total, sums)))


class OneDnnRows:
    """The products by oneDNN for one number of rows, float32 or 8-bit times 8-bit.

    `inputs` and `weights`, by shape, are [rows, in_features] and [out_features, in_features] of one type, `outputs`
    float32 [rows, out_features]. Raises RuntimeError where oneDNN refuses.
    """

    def __init__(self, library: Path, shapes: list[Shape], rows: int, *, int8: bool) -> None:
        self._library = ctypes.CDLL(str(library))
        random, make = np.random.default_rng(2), _random_int8 if int8 else _random_matrix
        self.weights = {shape: make(random, shape.out_features, shape.in_features) for shape in shapes}
        self.inputs = {shape: make(random, rows, shape.in_features) for shape in shapes}
        self.outputs = {shape: np.zeros((rows, shape.out_features), np.float32) for shape in shapes}
        given = (OneDnnStruct * len(shapes))(*(self._struct(shape) for shape in shapes))
        self._library.onednn_new.restype = c_void_p
        self._products = c_void_p(self._library.onednn_new(given, len(shapes), rows, int8))
        if not self._products.value:
            raise RuntimeError("oneDNN does not compute these products")
        weakref.finalize(self, self._library.onednn_delete, self._products)

    def multiply(self) -> None:
        """See `Products`."""
        self._library.onednn_multiply(self._products)

    def _struct(self, shape: Shape) -> OneDnnStruct:
        to = self.outputs[shape].ctypes.data_as(POINTER(c_float))
        weights, x = self.weights[shape].ctypes.data, self.inputs[shape].ctypes.data
        return OneDnnStruct(shape.in_features, shape.out_features, weights, x, to)


class MemoryStream:
    """A buffer of `size` bytes that no cache holds, read by all threads at once, in whole pieces of 512 bytes."""

    def __init__(self, library: Path, size: int) -> None:
        self._library = ctypes.CDLL(str(library))
        self._library.bench_stream.restype = ctypes.c_int64
        self.buffer = mapped_zeros(size // PIECE_BYTES * 64, "int64")
        # Written once, or all of it would be one page of zeros.
        self.buffer[:] = np.arange(len(self.buffer))
        self._at = 0

    def read(self, size: int) -> int:
        """Reads the next `size` bytes, wrapping around at the end; returns the sum of the numbers read."""
        total, left = 0, size // PIECE_BYTES * PIECE_BYTES
        while left > 0:
            part = min(left, self.buffer.nbytes - self._at)
            address = ctypes.c_void_p(self.buffer.ctypes.data + self._at)
            total += int(self._library.bench_stream(address, ctypes.c_int64(part // LINE_BYTES)))
            self._at, left = (self._at + part) % self.buffer.nbytes, left - part
        return total


def stream_bytes() -> int:
    """Size of a buffer that is large enough on this machine."""
    sizes = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    kib = [int(path.read_text().strip().removesuffix("K")) for path in sizes]
    return max(STREAM_BYTES, 8 * 1024 * max(kib, default=0))


def _random_matrix(random: np.random.Generator, rows: int, columns: int) -> NDArray[np.float32]:
    return random.standard_normal((rows, columns), np.float32)


def _random_int8(random: np.random.Generator, rows: int, columns: int) -> NDArray[np.int8]:
    return random.integers(-127, 128, (rows, columns), np.int8)


def _copy(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    copy = mapped_zeros(packed.nbytes, "uint8")
    copy[:] = packed
    return copy


def _pointer(array: NDArray[Any]) -> c_void_p:
    return c_void_p(array.ctypes.data)


def _round_up(columns: int) -> int:
    return -(-columns // PANEL) * PANEL
