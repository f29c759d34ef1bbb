"""Model files that are nearly right: refused with an error of our own, or read, and nothing else."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from support.noise import FIXED, Changes, changed, changes, json_values

from fastdeploy_lp.checkpoint import CheckpointError, num_parameters
from fastdeploy_lp.checkpoint.convert import convert_gguf
from fastdeploy_lp.checkpoint.files import read_model_files
from fastdeploy_lp.checkpoint.safetensors_file import write_safetensors
from fastdeploy_lp.model_executor.loader.weights import WeightsError, open_weights

# Most of it is names, shapes and numbers; what lies behind is weights.
HEADER_BYTES = 6000


@pytest.fixture
def tiny_gguf(tmp_path: Path, tiny: Any) -> bytes:
    content: bytes = tiny.write(tmp_path / "tiny.gguf").read_bytes()
    return content


@pytest.fixture(scope="module")
def tiny_safetensors(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("safetensors") / "model.safetensors"
    shapes: dict[str, tuple[int, ...]] = {"a": (2, 3), "b.weight": (5,), "c": (1,)}
    write_safetensors(path, shapes, [np.zeros(shape, np.float32) for shape in shapes.values()])
    return path.read_bytes()


@given(made=changes())
@FIXED
def test_damaged_gguf_files_are_refused_or_converted(
    tiny_gguf: bytes, made: Changes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("converted")
    path = folder / "damaged.gguf"
    path.write_bytes(changed(tiny_gguf, made, HEADER_BYTES))
    with contextlib.suppress(CheckpointError), np.errstate(all="ignore"):
        convert_gguf(path, folder, show_progress=False)


@given(made=changes())
@FIXED
def test_damaged_safetensors_files_are_refused_or_read(
    tiny_safetensors: bytes, made: Changes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("safetensors") / "model.safetensors"
    path.write_bytes(changed(tiny_safetensors, made, len(tiny_safetensors)))
    with contextlib.suppress(CheckpointError):
        assert num_parameters([path]) >= 0
    with contextlib.suppress(WeightsError), open_weights([path]) as weights:
        for name, shape in (("a", (2, 3)), ("b.weight", (5,)), ("c", (1,))):
            assert weights.take(name, shape).shape == shape


@given(table=json_values)
@FIXED
def test_any_json_as_a_safetensors_header_is_refused_or_read(
    table: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    header = json.dumps(table).encode()
    path = tmp_path_factory.mktemp("safetensors") / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(64))
    with contextlib.suppress(CheckpointError):
        assert num_parameters([path]) >= 0


@given(config=json_values, index=json_values)
@FIXED
def test_any_json_in_a_model_directory_is_refused_or_read(
    config: Any, index: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp() / "noise"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    with contextlib.suppress(CheckpointError):
        files = read_model_files(folder)
        assert all(path.parent == folder for path in files.weights)


def test_the_readers_were_given_what_they_can_read(tiny_gguf: bytes, tiny_safetensors: bytes, tmp_path: Path) -> None:
    (tmp_path / "tiny.gguf").write_bytes(tiny_gguf)
    convert_gguf(tmp_path / "tiny.gguf", tmp_path, show_progress=False)
    (tmp_path / "x.safetensors").write_bytes(tiny_safetensors)
    assert num_parameters([tmp_path / "x.safetensors"]) == 12
