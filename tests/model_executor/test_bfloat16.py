"""Products in bfloat16: their bits follow from the definition, whatever computes them."""

from __future__ import annotations

import ctypes
import dataclasses
import os
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import engine_native as native
import ml_dtypes
import numpy as np
import paddle
import pytest
from support.compilers import installed_compiler
from support.decoders import Setting, Shape, compiled_decoder
from support.server import REPOSITORY
from support.tiles import passes_on

from fastdeploy_lp.config.tile_choice import TileChoice
from fastdeploy_lp.model_executor.decoder_weights import FloatArray, LinearWeights
from fastdeploy_lp.model_executor.models.decoder import CompiledDecoder
from fastdeploy_lp.model_executor.ops.build import FLAGS, SOURCE_DIRECTORY
from fastdeploy_lp.model_executor.ops.packed_weight import PackedWeight, WeightFormat
from fastdeploy_lp.model_executor.ops.tiles import TileUnit

pytestmark = pytest.mark.usefixtures("ops")

GROUP = 32
LEAST_NORMAL = 2.0**-126
# Denormal numbers in float32; products that are denormal; sums that are, since they cancel; zeros of both signs.
SMALL = (1e-40, -1e-40, 1e-45, 2.0**-126, -(2.0**-126), 1e-25, -1e-25, 3e-20, -3e-20, 0.0, -0.0, 1.0078125, -1.0)


@pytest.fixture(params=[TileUnit.SWITCHED_OFF, TileUnit.EMULATED, TileUnit.AMX])
def _unit(request: pytest.FixtureRequest, ops: ctypes.CDLL) -> Iterator[None]:
    """Vectors, and the instructions of tiles: all of them add in the defined order."""
    with passes_on(ops, request.param):
        yield


ON_EACH_UNIT = pytest.mark.usefixtures("_unit")


def rounded(x: FloatArray) -> FloatArray:
    with np.errstate(invalid="ignore", over="ignore"):
        return x.astype(ml_dtypes.bfloat16).astype(np.float32)


@cache
def multiply_add() -> ctypes.CFUNCTYPE:
    """x * y + z of the C library, rounded once."""
    function = ctypes.CDLL(None).fmaf
    function.restype, function.argtypes = ctypes.c_float, [ctypes.c_float] * 3
    return function


def flushed(x: float) -> float:
    return float(np.copysign(0.0, x)) if abs(x) < LEAST_NORMAL else x


def chained(pairs: list[tuple[float, float]]) -> float:
    total = 0.0
    for x, y in pairs:
        total = flushed(multiply_add()(flushed(x), flushed(y), total))
    return total


def defined(x: FloatArray, weight: FloatArray) -> FloatArray:
    """x [rows, in] times weight [out, in]: groups of 32, of each the even and the odd inputs, their sum added up."""
    x, weight = rounded(x), rounded(weight)
    out = np.zeros((len(x), len(weight)), np.float32)
    for row, column in np.ndindex(out.shape):
        total = 0.0
        for start in range(0, x.shape[1], GROUP):
            a, b = x[row, start : start + GROUP].tolist(), weight[column, start : start + GROUP].tolist()
            pairs = list(zip(a, b, strict=True)) + [(0.0, 0.0)] * (GROUP - len(a))
            both = flushed(multiply_add()(1.0, chained(pairs[::2]), chained(pairs[1::2])))
            total = flushed(multiply_add()(1.0, both, total))
        out[row, column] = total
    return out


def decoder_with_head(weight: FloatArray, bias: FloatArray | None = None) -> CompiledDecoder:
    shape = Shape(hidden=weight.shape[1], vocab=len(weight), layers=1)
    weights = dataclasses.replace(shape.weights(), lm_head=LinearWeights(weight, bias))
    return compiled_decoder(shape, Setting("bfloat16"), weights)


def head_of(decoder: CompiledDecoder, hidden: FloatArray) -> FloatArray:
    logits: FloatArray = decoder.compute_logits(paddle.to_tensor(hidden)).numpy()
    return logits


def assert_same_bits(found: FloatArray, expected: FloatArray) -> None:
    """NaN is NaN: its sign and payload depend on the order of operands, which no instruction set defines."""
    nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(found), nan)
    np.testing.assert_array_equal(found.view(np.uint32)[~nan], expected.view(np.uint32)[~nan])


@ON_EACH_UNIT
@pytest.mark.parametrize(("rows", "out", "inputs"), [(1, 33, 31), (3, 40, 1), (7, 16, 33), (13, 70, 72), (40, 5, 97)])
def test_sums_have_the_defined_order(rows: int, out: int, inputs: int) -> None:
    random = np.random.default_rng(rows)
    x, weight = random.standard_normal((rows, inputs), np.float32), random.standard_normal((out, inputs), np.float32)
    assert_same_bits(head_of(decoder_with_head(weight), x), defined(x, weight))


@ON_EACH_UNIT
def test_denormal_numbers_and_results_are_zeros() -> None:
    random = np.random.default_rng(0)
    x, weight = (random.choice(np.array(SMALL, np.float32), (size, 75)) for size in (37, 50))
    found = head_of(decoder_with_head(weight), x)
    assert_same_bits(found, defined(x, weight))
    # So they are during a pass alone.
    assert np.float32(1e-40) * np.float32(1) > 0
    # There are sums that denormals would have changed.
    unflushed = rounded(x).astype(np.float64) @ rounded(weight).astype(np.float64).T
    assert ((found == 0) & (unflushed != 0)).any()


@ON_EACH_UNIT
def test_nan_and_infinity_show_in_their_row_alone() -> None:
    random = np.random.default_rng(0)
    x, weight = random.standard_normal((12, 40), np.float32), random.standard_normal((33, 40), np.float32)
    decoder = decoder_with_head(weight)
    clean = head_of(decoder, x)
    # A NaN whose upper half alone would be an infinity.
    x[2, 39] = np.array(0x7F800001, np.uint32).view(np.float32)
    x[5, 7] = np.inf
    x[7, [0, 1]] = np.inf, -np.inf
    # The largest float32 is nearer to infinity than to the largest bfloat16.
    x[9, 3] = np.finfo(np.float32).max
    found = head_of(decoder, x)
    assert np.isnan(found[2]).all()
    assert np.isinf(found[5]).all()
    assert np.isinf(found[9]).all()
    assert_same_bits(found, defined(x, weight))
    others = [row for row in range(12) if row not in (2, 5, 7, 9)]
    assert_same_bits(found[others], clean[others])


@ON_EACH_UNIT
def test_any_number_of_rows_has_the_same_bits() -> None:
    random = np.random.default_rng(0)
    x, weight = random.standard_normal((80, 150), np.float32), random.standard_normal((70, 150), np.float32)
    decoder = decoder_with_head(weight, random.standard_normal(70, np.float32))
    alone = np.concatenate([head_of(decoder, x[row : row + 1]) for row in range(len(x))])
    for rows in (*range(2, 41), 63, 64, 65, 80):
        assert_same_bits(head_of(decoder, x[:rows]), alone[:rows])


@pytest.mark.parametrize(("out", "inputs"), [(1, 1), (33, 31), (70, 97)])
def test_weights_are_rounded_to_the_nearest_halves_to_even(out: int, inputs: int, ops: ctypes.CDLL) -> None:
    random = np.random.default_rng(0)
    weight = random.standard_normal((out, inputs), np.float32)
    # Halfway between two, below an even one and above one; just beside; the ends of the range.
    bits = [0x3F808000, 0x3F818000, 0x3F808001, 0x3F817FFF, 0xBF808000, 0x7F7F7FFF, 0x00808000, 0x80000000, 0x00000001]
    for at, each in enumerate(bits[: weight.size]):
        weight.reshape(-1)[at] = np.array(each, np.uint32).view(np.float32)
    packed = PackedWeight.of(ops, weight, quantized=False, bfloat16=True)
    assert packed.format is WeightFormat.BFLOAT16
    found = np.full_like(weight, np.nan)
    for row in range(out):
        to, data = (ctypes.c_void_p(array.ctypes.data) for array in (found[row], packed.data))
        ops.fdlp_unpack_row(to, data, packed.format, inputs, row)
    np.testing.assert_array_equal(found.view(np.uint32), rounded(weight).view(np.uint32))


HARNESS = REPOSITORY / "benchmarks" / "native" / "products.cpp"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Products as on a processor without AVX512-BF16; skips on such a processor, which computes so already.

    The harness of products compiles in a tenth of the time of the operators; multiply-adds are contracted at -O1, too.
    """
    macros = [installed_compiler(), "-march=native", "-dM", "-E", "-xc++", os.devnull]
    if "__AVX512BF16__" not in subprocess.run(macros, capture_output=True, text=True, check=True).stdout:
        pytest.skip("no AVX512-BF16 on this machine")
    library = tmp_path_factory.mktemp("plain") / "products.so"
    options = ["-O1", "-mno-avx512bf16", "-DFDLP_FORMATS=FDLP_FORMAT(bfloat16)", "-I", str(SOURCE_DIRECTORY)]
    subprocess.run([installed_compiler(), *FLAGS, *options, str(HARNESS), "-o", str(library)], check=True)
    return library


@dataclasses.dataclass(frozen=True)
class Given:
    """The weights [out, in] and the activations [rows, in] of one product."""

    matrix: FloatArray
    x: FloatArray

    def weight(self, _: Any) -> FloatArray:
        return self.matrix

    def inputs(self, _rows: int, _columns: int) -> FloatArray:
        return self.x


@ON_EACH_UNIT
@pytest.mark.slow
def test_multiply_adds_alone_give_the_same_bits(plain: Path, ops: ctypes.CDLL) -> None:
    random = np.random.default_rng(0)
    weight = random.choice(np.array([*SMALL, *random.standard_normal(99)], np.float32), (70, 150))
    x = random.choice(np.array([*SMALL, *random.standard_normal(99)], np.float32), (41, 150))
    expected, shape = head_of(decoder_with_head(weight), x), native.Shape(150, 70, WeightFormat.BFLOAT16)
    products = native.OurProducts(plain, ops, [shape], 0, bfloat16=True, numbers=Given(weight, x))
    ctypes.CDLL(str(plain)).bench_choose_tiles(TileChoice.OFF)
    of_rows = products.rows(len(x))
    of_rows.multiply()
    assert_same_bits(of_rows.outputs[shape][:, : shape.out_features], expected)
