from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType

from fastdeploy_lp.checkpoint import CheckpointError
from fastdeploy_lp.checkpoint.gguf_reader import read_gguf


def damaged(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_reads_what_the_gguf_library_reads(tmp_path: Path, make_tiny: Any) -> None:
    path = make_tiny(quant=GGMLQuantizationType.Q4_1).write(tmp_path / "tiny.gguf")
    ours, theirs = read_gguf(path), gguf.GGUFReader(path)
    assert ours.metadata == {key: field.contents() for key, field in theirs.fields.items() if key[:5] != "GGUF."}
    assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
    for tensor in theirs.tensors:
        assert ours.tensors[tensor.name].shape == tuple(reversed(tensor.shape.tolist()))
        np.testing.assert_array_equal(ours.tensors[tensor.name].data, tensor.data.view(np.uint8))


def test_every_truncation_is_reported(tmp_path: Path, tiny: Any) -> None:
    data = tiny.write(tmp_path / "tiny.gguf").read_bytes()
    for length in np.linspace(4, len(data) - 1, 300, dtype=int):
        with pytest.raises(CheckpointError, match="truncated: it ends inside"):
            read_gguf(damaged(tmp_path / "cut.gguf", data[:length]))


def test_a_truncation_names_the_tensor_it_hits(tmp_path: Path, tiny: Any) -> None:
    data = tiny.write(tmp_path / "tiny.gguf").read_bytes()
    with pytest.raises(CheckpointError, match=r"cut\.gguf: truncated: it ends inside tensor blk\.1\.ffn_down\.weight;"):
        read_gguf(damaged(tmp_path / "cut.gguf", data[:-100]))


def test_a_damaged_header_is_an_error_or_readable_but_never_a_crash(tmp_path: Path, tiny: Any) -> None:
    data = tiny.write(tmp_path / "tiny.gguf").read_bytes()
    random = np.random.default_rng(0)
    for _ in range(300):
        broken = bytearray(data)
        broken[random.integers(4, 9000)] = random.integers(256)
        with contextlib.suppress(CheckpointError):
            read_gguf(damaged(tmp_path / "broken.gguf", bytes(broken)))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "cannot be read"),
        (b"GG", "not a GGUF file"),
        (b"PK\x03\x04" + bytes(100), "not a GGUF file"),
        (b"GGUF\x01\0\0\0" + bytes(100), "GGUF version 1 is not supported"),
        (b"GGUF\0\0\0\x03" + bytes(100), "big-endian is not supported; give a little-endian"),
    ],
)
def test_a_file_that_is_no_readable_gguf_says_so(tmp_path: Path, data: bytes, reason: str) -> None:
    with pytest.raises(CheckpointError, match=reason):
        read_gguf(damaged(tmp_path / "bad.gguf", data))


def test_a_missing_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_gguf(tmp_path / "gone.gguf")


def test_an_unknown_quantization_type_names_the_tensor_and_the_type(tmp_path: Path, tiny: Any) -> None:
    data = tiny.write(tmp_path / "tiny.gguf").read_bytes()
    name = b"output_norm.weight"
    # After the name: one dimension (4 bytes), its size (8), then the type.
    at = data.index(name) + len(name) + 12
    broken = data[:at] + (999).to_bytes(4, "little") + data[at + 4 :]
    with pytest.raises(CheckpointError, match=r"tensor output_norm\.weight has the unknown quantization type 999"):
        read_gguf(damaged(tmp_path / "bad.gguf", broken))


def test_metadata_is_checked_for_its_type(tmp_path: Path, tiny: Any) -> None:
    file = read_gguf(tiny.write(tmp_path / "tiny.gguf"))
    assert file.required("llama.block_count", int) == 2
    assert file.optional("llama.nothing", int, None) is None
    with pytest.raises(CheckpointError, match=r"no metadata llama\.nothing"):
        file.required("llama.nothing", int)
    with pytest.raises(CheckpointError, match=r"llama\.block_count is int, not str"):
        file.optional("llama.block_count", str, "")
    with pytest.raises(CheckpointError, match="token_type is not a list of strings"):
        file.texts("tokenizer.ggml.token_type")
