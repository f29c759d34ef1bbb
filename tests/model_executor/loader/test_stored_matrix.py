"""Matrices in files are packed as their copies in memory are, whatever becomes of their rows on the way."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from fastdeploy_lp.model_executor.loader.stored_matrix import StoredMatrix
from fastdeploy_lp.model_executor.loader.weights import Weights, WeightsError, open_weights
from fastdeploy_lp.model_executor.ops.packed_weight import NO_ROW, PackedWeight, WeightFormat

ROWS_OF = {"a": 70, "b": 1, "c": 33}
COLUMNS = 47
DTYPES: dict[str, Any] = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    """A checkpoint in two files for each element type."""
    folder, random = tmp_path_factory.mktemp("stored"), np.random.default_rng(3)
    found: dict[str, list[Path]] = {}
    for dtype, kind in DTYPES.items():
        tensors = {name: random.standard_normal((rows, COLUMNS)).astype(kind) for name, rows in ROWS_OF.items()}
        found[dtype] = [folder / f"{dtype}-0.safetensors", folder / f"{dtype}-1.safetensors"]
        for path, names in zip(found[dtype], (("a", "b"), ("c",)), strict=True):
            save_file({name: tensors[name] for name in names}, path)
    return found


@contextlib.contextmanager
def opened(paths: list[Path]) -> Iterator[dict[str, StoredMatrix]]:
    with open_weights(paths) as weights:
        yield {name: stored(weights, name, rows) for name, rows in ROWS_OF.items()}


def stored(weights: Weights, name: str, rows: int) -> StoredMatrix:
    matrix = weights.matrix(name, (rows, COLUMNS))
    assert isinstance(matrix, StoredMatrix)
    return matrix


@given(data=st.data(), dtype=st.sampled_from(list(DTYPES)), quantized=st.booleans())
@settings(max_examples=60, deadline=None)
def test_rows_of_files_are_packed_as_their_copies_are(
    ops: ctypes.CDLL, files: dict[str, list[Path]], data: st.DataObject, dtype: str, quantized: bool
) -> None:
    with opened(files[dtype]) as matrices:
        chosen = []
        for name in data.draw(st.lists(st.sampled_from(list(ROWS_OF)), min_size=1, max_size=3)):
            rows = data.draw(st.lists(st.integers(0, ROWS_OF[name] - 1), min_size=1, max_size=80))
            chosen.append(matrices[name][np.array(rows)] if data.draw(st.booleans()) else matrices[name])
        copies = np.concatenate([np.asarray(matrix) for matrix in chosen])
        numbers = st.integers(NO_ROW, len(copies) - 1)
        order = data.draw(st.none() | st.lists(numbers, min_size=1, max_size=100).map(np.array))
        found = PackedWeight.of(ops, *chosen, quantized=quantized, order=order)
    assert copies.dtype == np.float32
    wanted = copies if order is None else np.where((order == NO_ROW)[:, None], np.float32(0), copies[order])
    expected = PackedWeight.of(ops, wanted, quantized=quantized)
    assert found.format == expected.format
    np.testing.assert_array_equal(found.data, expected.data)
    if not quantized and dtype != "float32":
        assert found.format.bits <= 16


def test_arrays_and_files_share_a_packed_matrix(ops: ctypes.CDLL, files: dict[str, list[Path]]) -> None:
    added = np.random.default_rng(0).standard_normal((5, COLUMNS), np.float32)
    with opened(files["float32"]) as matrices:
        whole = np.concatenate([added, np.asarray(matrices["a"])])
        # A part of an array, whose rows do not follow one another.
        found = PackedWeight.of(ops, np.hstack([added, added])[:, :COLUMNS], matrices["a"], quantized=False)
    np.testing.assert_array_equal(found.data, PackedWeight.of(ops, whole, quantized=False).data)
    assert found.format == WeightFormat.FLOAT32


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", list(DTYPES))
def test_a_weight_that_is_no_number_is_named_where_it_is_read(
    tmp_path: Path, ops: ctypes.CDLL, value: float, dtype: str
) -> None:
    tensors = {name: np.ones((rows, COLUMNS), DTYPES[dtype]) for name, rows in ROWS_OF.items()}
    tensors["c"][32, 46] = value
    path = tmp_path / "model.safetensors"
    save_file(tensors, path)
    with opened([path]) as matrices:
        PackedWeight.of(ops, matrices["a"], matrices["b"], quantized=False)
        with pytest.raises(WeightsError) as packed:
            PackedWeight.of(ops, matrices["a"], matrices["c"][::-1], quantized=False)
        with pytest.raises(WeightsError) as read:
            np.asarray(matrices["c"])
    assert str(packed.value) == str(read.value) == f"{path}: tensor c holds NaN or infinity"


def test_a_file_that_is_cut_off_while_it_is_read_is_named(tmp_path: Path, ops: ctypes.CDLL) -> None:
    path = tmp_path / "model.safetensors"
    save_file({name: np.ones((rows, COLUMNS), np.float32) for name, rows in ROWS_OF.items()}, path)
    with opened([path]) as matrices:
        os.truncate(path, path.stat().st_size - 4)
        with pytest.raises(WeightsError, match="tensor c cannot be read; give a complete copy of the model"):
            PackedWeight.of(ops, matrices["a"], matrices["c"], quantized=True)


def test_a_matrix_is_an_array_to_numpy(files: dict[str, list[Path]]) -> None:
    with opened(files["float16"]) as matrices, open_weights(files["float16"]) as weights:
        matrix = matrices["a"]
        copy = weights.take("a", matrix.shape)
        assert (matrix.shape, matrix.size, len(matrix)) == (copy.shape, copy.size, len(copy))
        np.testing.assert_array_equal(np.split(matrix, 2)[1], copy[35:])  # type: ignore[arg-type]
        np.testing.assert_array_equal(np.asarray(matrix[3:9], np.float64), copy[3:9])
        with pytest.raises(ValueError, match="makes a copy"):
            np.array(matrix, copy=False)


def test_doubles_are_read_at_once(tmp_path: Path) -> None:
    """The operators read numbers of up to 32 bits."""
    path = tmp_path / "model.safetensors"
    save_file({"x": np.arange(12, dtype=np.float64).reshape(4, 3)}, path)
    with open_weights([path]) as weights:
        taken = weights.matrix("x", (4, 3))
    assert isinstance(taken, np.ndarray)
    assert taken.dtype == np.float32
