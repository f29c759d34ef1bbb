"""Matrices of GGUF's K-quants keep their bits and stand for the numbers that GGUF's own library reads."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.k_quants import BLOCK, FORMATS, dequantized, random_k_blocks, write_k_quants

from fastdeploy_lp.checkpoint.blocks import BLOCK_TYPES
from fastdeploy_lp.model_executor.loader.split import COLUMNS, ROWS
from fastdeploy_lp.model_executor.loader.stored_matrix import StoredMatrix
from fastdeploy_lp.model_executor.loader.weights import Weights, WeightsError, open_weights
from fastdeploy_lp.model_executor.ops.packed_weight import NO_ROW, PackedWeight, WeightFormat

KINDS = sorted(FORMATS)
# Bits of a weight in memory, with all scales.
BITS = {"Q4_K": 4.625, "Q5_K": 5.625, "Q6_K": 6.5625}


@contextlib.contextmanager
def opened(path: Path, tensors: dict[str, tuple[str | None, NDArray[Any]]]) -> Iterator[Weights]:
    write_k_quants(path, tensors)
    with open_weights([path]) as weights:
        yield weights


def matrix(weights: Weights, name: str) -> StoredMatrix:
    rows, columns = weights.shapes()[name]
    found = weights.matrix(name, (rows, columns))
    assert isinstance(found, StoredMatrix)
    return found


def unpacked(ops: ctypes.CDLL, packed: PackedWeight, columns: int) -> NDArray[np.float32]:
    found = np.full((packed.out_features, columns), np.nan, np.float32)
    for row in range(len(found)):
        target = ctypes.c_void_p(found[row].ctypes.data)
        ops.fdlp_unpack_row(target, ctypes.c_void_p(packed.data.ctypes.data), packed.format, columns, row)
    return found


def assert_same_numbers(found: NDArray[np.float32], expected: NDArray[np.float32]) -> None:
    # Adding zero takes the sign off zeros, the one thing in which they may differ.
    zero = np.float32(0)
    np.testing.assert_array_equal((found + zero).view(np.uint32), (expected + zero).view(np.uint32))


@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize(("rows", "columns"), [(1, 256), (40, 512), (64, 768)])
@pytest.mark.parametrize("kind", KINDS)
def test_a_matrix_keeps_its_bits(
    tmp_path: Path, ops: ctypes.CDLL, kind: str, rows: int, columns: int, quantized: bool
) -> None:
    blocks = random_k_blocks(np.random.default_rng(rows), rows, columns, kind)
    with opened(tmp_path / "model.safetensors", {"x": (kind, blocks)}) as weights:
        packed = PackedWeight.of(ops, matrix(weights, "x"), quantized=quantized)
    assert packed.format is FORMATS[kind]
    assert packed.data.nbytes * 8 == BITS[kind] * -(-rows // 32) * 32 * columns
    assert_same_numbers(unpacked(ops, packed, columns), dequantized(blocks, kind))


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_blocks_may_be_reordered_and_left_out(tmp_path: Path, ops: ctypes.CDLL, kind: str) -> None:
    random = np.random.default_rng(0)
    parts = {
        "a": (kind, random_k_blocks(random, 48, BLOCK, kind)),
        "b": (kind, random_k_blocks(random, 20, BLOCK, kind)),
    }
    order = random.integers(NO_ROW, 60, 70)
    with opened(tmp_path / "model.safetensors", parts) as weights:
        packed = PackedWeight.of(ops, matrix(weights, "a")[::-1], matrix(weights, "b"), quantized=True, order=order)
    rows = np.concatenate([dequantized(parts["a"][1], kind)[::-1], dequantized(parts["b"][1], kind)])
    assert packed.format is FORMATS[kind]
    assert_same_numbers(unpacked(ops, packed, BLOCK), np.where(order[:, None] == NO_ROW, np.float32(0), rows[order]))


def mixed(random: np.random.Generator, **sizes: tuple[str | None, int]) -> dict[str, tuple[str | None, NDArray[Any]]]:
    """Matrices of a type, None for float32, and so many rows."""
    return {
        name: (kind, random.standard_normal((rows, BLOCK), np.float32))
        if kind is None
        else (kind, random_k_blocks(random, rows, BLOCK, kind))
        for name, (kind, rows) in sizes.items()
    }


def numbers(tensors: dict[str, tuple[str | None, NDArray[Any]]]) -> NDArray[np.float32]:
    return np.concatenate([array if kind is None else dequantized(array, kind) for kind, array in tensors.values()])


@pytest.mark.parametrize(
    ("sizes", "formats"),
    [
        # Queries, keys and values of a Q4_K_M file.
        ({"q": ("Q4_K", 64), "k": ("Q4_K", 32), "v": ("Q6_K", 32)}, [WeightFormat.LEVELS4K, WeightFormat.LEVELS6K]),
        (
            {"q": ("Q4_K", 64), "k": (None, 32), "v": ("Q5_K", 40)},
            [WeightFormat.LEVELS4K, WeightFormat.FLOAT32, WeightFormat.LEVELS5K],
        ),
        # A panel of two types is read as numbers.
        (
            {"q": ("Q4_K", 64), "k": ("Q6_K", 40), "v": ("Q4_K", 24)},
            [WeightFormat.LEVELS4K, WeightFormat.LEVELS6K, None],
        ),
        # More sections than a product has.
        ({"a": ("Q4_K", 32), "b": ("Q5_K", 32), "c": ("Q6_K", 32), "d": ("Q4_K", 32)}, [None]),
    ],
)
def test_projections_of_several_types_keep_theirs(
    tmp_path: Path, ops: ctypes.CDLL, sizes: dict[str, tuple[str | None, int]], formats: list[WeightFormat | None]
) -> None:
    tensors = mixed(np.random.default_rng(1), **sizes)
    with opened(tmp_path / "model.safetensors", tensors) as weights:
        sections = PackedWeight.sections(ops, *(matrix(weights, name) for name in tensors), quantized=False)
        one = PackedWeight.of(ops, *(matrix(weights, name) for name in tensors), quantized=False)
    # Formats of several types: 32 bits hold them all.
    assert [part.format for part in sections] == [kind or WeightFormat.FLOAT32 for kind in formats]
    for found in ([one], sections):
        assert_same_numbers(np.concatenate([unpacked(ops, part, BLOCK) for part in found]), numbers(tensors))


@pytest.mark.parametrize("kind", KINDS)
def test_a_scale_that_is_no_number_is_named(tmp_path: Path, ops: ctypes.CDLL, kind: str) -> None:
    for place in BLOCK_TYPES[kind].scales:
        tensors = mixed(np.random.default_rng(2), a=(kind, 40), b=(kind, 33))
        blocks = tensors["b"][1]
        blocks[32, place : place + 2] = np.frombuffer(np.float16(np.inf).tobytes(), np.uint8)
        with opened(tmp_path / "model.safetensors", tensors) as weights:
            for pack in (
                lambda: PackedWeight.of(ops, matrix(weights, "a"), matrix(weights, "b"), quantized=True),
                lambda: np.asarray(matrix(weights, "b")),
                lambda: PackedWeight.of(ops, matrix(weights, "b"), np.ones((1, BLOCK), np.float32), quantized=True),
            ):
                with pytest.raises(WeightsError, match="tensor b holds NaN or infinity"):
                    pack()


class _Rank:
    size = 3

    def __init__(self, rank: int) -> None:
        self.rank = rank


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_read_their_parts_as_numbers(tmp_path: Path, kind: str) -> None:
    blocks = random_k_blocks(np.random.default_rng(3), 40, 2 * BLOCK, kind)
    write_k_quants(tmp_path / "model.safetensors", {"x": (kind, blocks)})
    for split in (ROWS, COLUMNS):
        found = []
        for rank in range(_Rank.size):
            with open_weights([tmp_path / "model.safetensors"], communicator=_Rank(rank)) as weights:  # type: ignore[arg-type]
                found.append(np.asarray(weights.matrix("x", (40, 2 * BLOCK), split)))
        np.testing.assert_array_equal(np.concatenate(found, axis=split.axis), dequantized(blocks, kind))
