"""Element types of attention: conversions in numpy's bits, and products whose operands are laid out as NVIDIA says."""

from __future__ import annotations

from ctypes import c_void_p
from typing import Any

import numpy as np
import pytest
from attention_cases import as_floats, as_stored
from numpy.typing import NDArray
from support.cuda_shim import ShimDevice

from fastdeploy_lp.model_executor.ops.cuda.sources import KernelSources

KERNELS = """
#include "elements.cuh"
template <class Element>
void convert_to(const float* from, unsigned short* to) {
    const int at = blockIdx.x * blockDim.x + threadIdx.x;
    to[at] = Element::rounded(from[at]);
}
template <class Element>
void convert_from(const unsigned short* from, float* to) {
    const int at = blockIdx.x * blockDim.x + threadIdx.x;
    to[at] = Element::value(from[at]);
}
template <class Element>
void product(const typename Element::Pair* a, const typename Element::Pair* b, float* sums) {
    Element::multiply(*reinterpret_cast<float(*)[4]>(sums + 4 * threadIdx.x),
                      *reinterpret_cast<const typename Element::Pair(*)[4]>(a + 4 * threadIdx.x),
                      *reinterpret_cast<const typename Element::Pair(*)[2]>(b + 2 * threadIdx.x));
}
FDLP_KERNEL to_bfloat16(const float* from, unsigned short* to) { convert_to<fdlp::Bfloat16>(from, to); }
FDLP_KERNEL to_float16(const float* from, unsigned short* to) { convert_to<fdlp::Float16>(from, to); }
FDLP_KERNEL from_bfloat16(const unsigned short* from, float* to) { convert_from<fdlp::Bfloat16>(from, to); }
FDLP_KERNEL from_float16(const unsigned short* from, float* to) { convert_from<fdlp::Float16>(from, to); }
FDLP_KERNEL bfloat16(const u32* a, const u32* b, float* sums) { product<fdlp::Bfloat16>(a, b, sums); }
FDLP_KERNEL float16(const u32* a, const u32* b, float* sums) { product<fdlp::Float16>(a, b, sums); }
FDLP_KERNEL float32(const fdlp::Floats* a, const fdlp::Floats* b, float* sums) { product<fdlp::Float32>(a, b, sums); }
"""
THREADS = 256
# Conversions of NaN and of numbers beyond a type.
pytestmark = pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning", "ignore:overflow:RuntimeWarning")


@pytest.fixture(scope="module")
def device() -> ShimDevice:
    return ShimDevice(sources=KernelSources(KERNELS, KernelSources.attention().headers))


def launch(device: ShimDevice, name: str, grid: int, threads: int, *arrays: NDArray[Any]) -> None:
    device.launch(name, (grid, 1), threads, *(c_void_p(array.ctypes.data) for array in arrays))


def every_stored() -> NDArray[np.uint16]:
    return np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)


@pytest.mark.parametrize("element", ["bfloat16", "float16"])
def test_every_stored_number_has_its_value(device: ShimDevice, element: str) -> None:
    stored, found = every_stored(), np.empty(1 << 16, np.float32)
    launch(device, f"from_{element}", len(found) // THREADS, THREADS, stored, found)
    expected = as_floats(stored if element == "bfloat16" else stored.view(np.float16), element)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("element", ["bfloat16", "float16"])
def test_numbers_are_rounded_to_the_nearest_even_one(device: ShimDevice, element: str) -> None:
    """Stored numbers, the middle of neighbors, the floats beside it, and floats of any bits."""
    stored = every_stored() if element == "bfloat16" else every_stored().view(np.float16)
    values = as_floats(stored, element)
    middle = ((values[:-1] + values[1:]) / 2).astype(np.float32)
    numbers = np.concatenate([values, middle, np.nextafter(middle, np.inf), np.nextafter(middle, -np.inf)])
    random = np.random.default_rng(1).integers(0, 1 << 32, 1 << 16, dtype=np.uint32).view(np.float32)
    given = np.concatenate([numbers.astype(np.float32), random])
    given = np.concatenate([given, np.zeros(-len(given) % THREADS, np.float32)])
    found = np.empty(len(given), np.uint16)
    launch(device, f"to_{element}", len(given) // THREADS, THREADS, given, found)
    expected = as_stored(given, element)
    if element == "float16":
        found = found.view(np.float16)
    np.testing.assert_array_equal(as_floats(found, element), as_floats(expected, element))
    # The sign of zero, too.
    finite = ~np.isnan(given)
    np.testing.assert_array_equal(found.view(np.uint16)[finite], expected.view(np.uint16)[finite])


def in_lanes(matrix: NDArray[Any]) -> NDArray[Any]:
    """Parts [32, pairs, 2] of a first factor [16, 16]: "Matrix fragments for mma.m16n8k16" in the PTX ISA."""
    lane, pair, odd = np.ogrid[:32, :4, :2]
    return matrix[lane // 4 + pair % 2 * 8, lane % 4 * 2 + odd + pair // 2 * 8]


def second_in_lanes(matrix: NDArray[Any]) -> NDArray[Any]:
    """The same for a second factor [16, 8]."""
    lane, pair, odd = np.ogrid[:32, :2, :2]
    return matrix[lane % 4 * 2 + odd + pair * 8, lane // 4]


@pytest.mark.parametrize("element", ["bfloat16", "float16", "float32"])
def test_products_have_the_layout_of_the_instruction(device: ShimDevice, element: str) -> None:
    random = np.random.default_rng(2)
    a, b = random.integers(-8, 9, (16, 16)), random.integers(-8, 9, (16, 8))
    sums = np.arange(32 * 4, dtype=np.float32).reshape(32, 4)
    lane, place = np.ogrid[:32, :4]
    row, column = lane // 4 + place // 2 * 8, lane % 4 * 2 + place % 2
    expected = sums + (a @ b)[row, column]
    parts = [np.ascontiguousarray(as_stored(part.astype(float), element)) for part in (in_lanes(a), second_in_lanes(b))]
    launch(device, element, 1, 32, *parts, sums)
    np.testing.assert_array_equal(sums, expected)
