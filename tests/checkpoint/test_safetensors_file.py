from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fastdeploy_lp.checkpoint import CheckpointError, num_parameters
from fastdeploy_lp.checkpoint.safetensors_file import read_header, write_safetensors


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


def write_blocks(path: Path, blocks: object, dtype: str = "U8", shape: tuple[int, ...] = (2, 144)) -> Path:
    """A file with one tensor of zeros, and metadata that call some tensors blocks."""
    size = int(np.prod(shape))
    metadata = {"fastdeploy_lp.blocks": blocks if isinstance(blocks, str) else json.dumps(blocks)}
    tensor = {"dtype": dtype, "shape": list(shape), "data_offsets": [0, size]}
    header = json.dumps({"__metadata__": metadata, "a": tensor}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(size))
    return path


def test_blocks_count_as_the_weights_that_they_hold(tmp_path: Path) -> None:
    path = write_blocks(tmp_path / "blocks.safetensors", {"a": "Q4_K"})
    assert num_parameters([path]) == 512
    header = read_header(path)["a"]
    assert (header.dtype, header.shape) == ("Q4_K", (2, 256))


@pytest.mark.parametrize(
    ("blocks", "dtype", "shape", "reason"),
    [
        ("[", "U8", (2, 144), "cannot be read"),
        ([], "U8", (2, 144), "blocks is no JSON object"),
        ({"a": "Q9_K"}, "U8", (2, 144), "tensor a has blocks of the unknown type 'Q9_K'"),
        ({"a": 5}, "U8", (2, 144), "tensor a has blocks of the unknown type 5"),
        ({"b": "Q4_K"}, "U8", (2, 144), "tensor b is no matrix of Q4_K blocks"),
        ({"a": "Q4_K"}, "I8", (2, 144), "tensor a is no matrix of Q4_K blocks"),
        ({"a": "Q4_K"}, "U8", (144,), "tensor a is no matrix of Q4_K blocks"),
        ({"a": "Q4_K"}, "U8", (2, 145), "tensor a is no matrix of Q4_K blocks"),
    ],
)
def test_metadata_that_call_other_tensors_blocks_are_refused(
    tmp_path: Path, blocks: object, dtype: str, shape: tuple[int, ...], reason: str
) -> None:
    path = write_blocks(tmp_path / "blocks.safetensors", blocks, dtype, shape)
    with pytest.raises(CheckpointError, match=reason):
        read_header(path)


def test_rows_of_no_whole_blocks_are_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="rows of 255 are no whole Q4_K blocks of 256"):
        write_safetensors(tmp_path / "a", {"a": (1, 255)}, [], blocks={"a": "Q4_K"})
