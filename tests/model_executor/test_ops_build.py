from __future__ import annotations

import ctypes
import importlib.util
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pytest
from support.compilers import dying_compiler, quick_compiler, runs

from fastdeploy_lp.model_executor.ops import build as own_build

BuildFile = Path(own_build.__file__)


@pytest.fixture
def build(tmp_path: Path) -> ModuleType:
    """`build.py` with a copy of the sources beside it, loaded by its path as `setup.py` loads it."""
    shutil.copytree(own_build.SOURCE_DIRECTORY, tmp_path / "ops" / "csrc")
    shutil.copy(BuildFile, tmp_path / "ops")
    return loaded(tmp_path / "ops" / "build.py")


@pytest.fixture
def small_build(build: ModuleType) -> ModuleType:
    """The same of one source, which compiles in no time."""
    for source in build.SOURCE_DIRECTORY.rglob("*.cpp"):
        if source.name != "threads.cpp":
            source.unlink()
    return build


def loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("copied_build", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def files_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_library_that_can_be_loaded_appears_under_its_name(
    small_build: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", str(quick_compiler(tmp_path / "bin")))
    path = small_build.compile_library(tmp_path / "not" / "there")
    assert path == tmp_path / "not" / "there" / small_build.library_name()
    assert files_in(path.parent) == [path.name]
    assert ctypes.CDLL(str(path)).fdlp_num_threads() >= 1


def test_builds_at_the_same_time_end_with_one_whole_library(
    small_build: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", str(quick_compiler(tmp_path / "bin")))
    with ThreadPoolExecutor(3) as pool:
        running = [pool.submit(small_build.compile_library, tmp_path / "out") for _ in range(3)]
        paths = {done.result() for done in running}
    assert runs(tmp_path / "bin") == 3
    assert files_in(tmp_path / "out") == [small_build.library_name()]
    assert ctypes.CDLL(str(paths.pop())).fdlp_num_threads() >= 1


def test_nothing_is_left_of_a_compiler_that_dies_half_way(
    build: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", str(dying_compiler(tmp_path / "bin")))
    with pytest.raises(build.BuildError, match="ended with status -9"):
        build.compile_library(tmp_path / "out")
    assert files_in(tmp_path / "out") == []


def test_sources_that_do_not_compile_are_quoted(
    build: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", str(quick_compiler(tmp_path / "bin")))
    for source in build.SOURCE_DIRECTORY.rglob("*.cpp"):
        source.unlink()
    (build.SOURCE_DIRECTORY / "decoder.cpp").write_text("int broken = no_such_name;\n")
    with pytest.raises(build.BuildError, match="no_such_name"):
        build.compile_library(tmp_path / "out")
    assert files_in(tmp_path / "out") == []


def test_without_a_compiler_the_error_says_what_was_looked_for(
    build: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(build.BuildError, match=r"no C\+\+ compiler \(g\+\+, c\+\+, clang\+\+\) on PATH"):
        build.compile_library(tmp_path / "out")


@pytest.mark.parametrize("name", ["g++-that-is-not-there", "/nowhere/g++"])
def test_a_compiler_named_by_cxx_is_the_only_one_tried(
    name: str, build: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", name)
    with pytest.raises(build.BuildError) as caught:
        build.compile_library(tmp_path / "out")
    assert f"({name})" in str(caught.value)


def test_cxx_may_name_a_compiler_with_arguments(
    small_build: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", f"env '{quick_compiler(tmp_path / 'b i n')}' -L/")
    assert small_build.compile_library(tmp_path / "out").is_file()
    assert runs(tmp_path / "b i n") == 1


def test_a_directory_that_cannot_be_written_is_named(
    build: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", str(quick_compiler(tmp_path / "bin")))
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(build.BuildError) as caught:
        build.compile_library(tmp_path / "file" / "ops")
    assert str(tmp_path / "file" / "ops") in str(caught.value)
    assert runs(tmp_path / "bin") == 0


# The name


def test_the_name_is_that_of_the_same_sources_elsewhere(build: ModuleType) -> None:
    assert build.library_name() == own_build.library_name()


SOURCES = sorted(path for path in own_build.SOURCE_DIRECTORY.rglob("*") if path.is_file())


@pytest.mark.parametrize("name", [path.relative_to(own_build.SOURCE_DIRECTORY).as_posix() for path in SOURCES])
def test_any_change_of_a_source_changes_the_name(name: str, build: ModuleType) -> None:
    before = build.library_name()
    path = build.SOURCE_DIRECTORY / name
    path.write_text(path.read_text() + "\n")
    assert build.library_name() != before


def test_a_source_more_or_less_or_renamed_changes_the_name(build: ModuleType) -> None:
    names = {build.library_name()}
    (build.SOURCE_DIRECTORY / "more.h").write_text("")
    names.add(build.library_name())
    (build.SOURCE_DIRECTORY / "more.h").rename(build.SOURCE_DIRECTORY / "other.h")
    names.add(build.library_name())
    assert len(names) == 3


def test_other_flags_change_the_name(build: ModuleType) -> None:
    text = Path(build.__file__ or "").read_text()
    changed = Path(build.__file__ or "").with_name("build_with_other_flags.py")
    changed.write_text(text.replace('"-O3"', '"-O2"'))
    assert loaded(changed).library_name() != build.library_name()


def test_the_file_needs_nothing_but_the_standard_library() -> None:
    lines = [line.split()[1].partition(".")[0] for line in BuildFile.read_text().splitlines() if _imports(line)]
    assert {name for name in lines if name != "__future__"} <= sys.stdlib_module_names


def _imports(line: str) -> bool:
    return line.startswith(("import ", "from "))
