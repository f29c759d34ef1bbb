from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fastdeploy_lp.checkpoint import CheckpointError, num_parameters
from fastdeploy_lp.checkpoint.safetensors_file import write_safetensors


def test_parameters_are_counted_over_all_files(tmp_path: Path) -> None:
    shapes: list[dict[str, tuple[int, ...]]] = [{"a": (2, 3), "b": (5,)}, {"c": (), "d": (0, 7)}]
    for index, each in enumerate(shapes):
        write_safetensors(tmp_path / str(index), each, [np.zeros(shape, np.float32) for shape in each.values()])
    assert num_parameters([tmp_path / "0"]) == 11
    assert num_parameters([tmp_path / "0", tmp_path / "1"]) == 12
    assert num_parameters([]) == 0


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"text",
        (2**60).to_bytes(8, "little"),
        (4).to_bytes(8, "little") + b"[1,2",
        (2).to_bytes(8, "little") + b"[]",
        len(json.dumps({"a": 5})).to_bytes(8, "little") + json.dumps({"a": 5}).encode(),
    ],
)
def test_a_file_that_is_no_safetensors_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broken.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"broken\.safetensors: cannot be read as safetensors"):
        num_parameters([path])


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"gone\.safetensors"):
        num_parameters([tmp_path / "gone.safetensors"])
