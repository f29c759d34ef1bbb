from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType
from safetensors.numpy import load_file

from fastdeploy_lp.checkpoint import CheckpointError, ModelFiles, resolve_model
from fastdeploy_lp.checkpoint.cache import cache_root


def modification_times(directory: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in directory.iterdir()}


def directories(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir() if path.is_dir())


def convert(path: Path) -> ModelFiles:
    return resolve_model(str(path), show_progress=False)


def start_python(code: str) -> subprocess.Popen[str]:
    # The new process has to find the package however this one did.
    root = Path(sys.modules["fastdeploy_lp.checkpoint"].__path__[0]).parents[1]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    return subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize(
    ("own", "shared", "expected"),
    [("/own", "/shared", "/own"), ("", "/shared", "/shared/fastdeploy_lp"), ("", "", "/home/me/.cache/fastdeploy_lp")],
)
def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, own: str, shared: str, expected: str) -> None:
    monkeypatch.setenv("FASTDEPLOY_LP_CACHE", own)
    monkeypatch.setenv("XDG_CACHE_HOME", shared)
    monkeypatch.setenv("HOME", "/home/me")
    assert cache_root() == Path(expected)


def test_a_gguf_becomes_a_hugging_face_directory_in_the_cache(tmp_path: Path, cache: Path, tiny: Any) -> None:
    source = tiny.write(tmp_path / "tiny.gguf")
    files = convert(source)
    assert files.directory.parent == cache
    assert files.source == source
    assert files.weights == (files.directory / "model.safetensors",)
    assert set(modification_times(files.directory)) == {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert resolve_model(str(files.directory)).config == files.config


def test_a_progress_bar_is_drawn_only_if_asked(
    tmp_path: Path, cache: Path, tiny: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    convert(tiny.write(tmp_path / "quiet.gguf"))
    assert capsys.readouterr().err == ""
    resolve_model(str(tiny.write(tmp_path / "loud.gguf")), show_progress=True)
    assert "Converting loud.gguf" in capsys.readouterr().err


def test_a_second_start_rewrites_nothing(tmp_path: Path, cache: Path, tiny: Any) -> None:
    source = tiny.write(tmp_path / "tiny.gguf")
    first = convert(source)
    before = modification_times(first.directory)
    second = convert(source)
    assert second == first
    assert modification_times(second.directory) == before


def test_a_second_start_does_not_load_the_converter(tmp_path: Path, cache: Path, tiny: Any) -> None:
    source = tiny.write(tmp_path / "tiny.gguf")
    directory = convert(source).directory
    code = f"""
import sys
from fastdeploy_lp.checkpoint import resolve_model
print(resolve_model({str(source)!r}).directory, {{"gguf", "fastdeploy_lp.checkpoint.convert"}} & set(sys.modules))
"""
    assert start_python(code).communicate()[0] == f"{directory} set()\n"


def test_a_rewritten_file_is_converted_again(tmp_path: Path, cache: Path, make_tiny: Any) -> None:
    source = tmp_path / "tiny.gguf"
    old = convert(make_tiny(seed=1).write(source))
    new = convert(make_tiny(seed=2).write(source))
    assert old.directory != new.directory
    name = "model.embed_tokens.weight"
    assert not np.array_equal(load_file(old.weights[0])[name], load_file(new.weights[0])[name])


def test_a_swapped_file_of_the_same_age_and_size_is_converted_again(
    tmp_path: Path, cache: Path, make_tiny: Any
) -> None:
    source = make_tiny(seed=1).write(tmp_path / "tiny.gguf")
    status = source.stat()
    old = convert(source)
    make_tiny(seed=2).write(source)
    os.utime(source, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert source.stat().st_size == status.st_size
    assert convert(source).directory != old.directory


def test_a_failed_conversion_leaves_no_directory(tmp_path: Path, cache: Path, make_tiny: Any) -> None:
    tiny = make_tiny()
    shape = tiny.tensors["blk.1.ffn_down.weight"][0].shape
    tiny.tensors["blk.1.ffn_down.weight"] = (np.zeros(shape, np.int32), GGMLQuantizationType.I32)
    with pytest.raises(CheckpointError, match=r"blk\.1\.ffn_down"):
        convert(tiny.write(tmp_path / "tiny.gguf"))
    assert directories(cache) == []


def test_what_a_killed_conversion_left_is_removed_by_the_next_one(tmp_path: Path, cache: Path, tiny: Any) -> None:
    source = tiny.write(tmp_path / "tiny [v1].gguf")
    name = convert(source).directory.name
    (cache / name).rename(cache / f".{name}.0123abcd.partial")
    assert convert(source).directory == cache / name
    assert directories(cache) == [name]


def test_a_conversion_that_lost_a_file_is_made_again(tmp_path: Path, cache: Path, tiny: Any) -> None:
    source = tiny.write(tmp_path / "tiny.gguf")
    directory = convert(source).directory
    (directory / "tokenizer.json").unlink()
    assert convert(source).directory == directory
    assert (directory / "tokenizer.json").is_file()
    assert directories(cache) == [directory.name]


def test_processes_that_convert_at_the_same_time_share_one_result(tmp_path: Path, cache: Path, tiny: Any) -> None:
    source = tiny.write(tmp_path / "tiny.gguf")
    code = f"""
from fastdeploy_lp.checkpoint import resolve_model
print(resolve_model({str(source)!r}, show_progress=False).directory)
"""
    processes = [start_python(code) for _ in range(3)]
    printed = {process.communicate()[0].strip() for process in processes}
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert printed == {str(cache / name) for name in directories(cache)}
    assert len(printed) == 1


def test_a_cache_that_cannot_be_written_says_which_variable_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny: Any
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("FASTDEPLOY_LP_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(CheckpointError, match="set FASTDEPLOY_LP_CACHE to a writable directory"):
        convert(tiny.write(tmp_path / "tiny.gguf"))
