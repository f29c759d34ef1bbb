"""A wheel has everything that a server needs, the compiled operators of the machine that built it included."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from support.compilers import partial_compiler
from support.server import REPOSITORY

from fastdeploy_lp.model_executor.ops.build import library_name

NEEDED = ("setup.py", "pyproject.toml", "README.md", "LICENSE")
OPS = "fastdeploy_lp/model_executor/ops"
SECONDS = 300.0
# The source of the functions with which a library describes itself. Other tests compile all sources and compute.
DESCRIBED = "tile_unit.cpp"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of the sources, in which an older build has left its library."""
    folder = tmp_path_factory.mktemp("wheel")
    sources = folder / "sources"
    shutil.copytree(
        REPOSITORY / "fastdeploy_lp", sources / "fastdeploy_lp", ignore=shutil.ignore_patterns("__pycache__", "*.so")
    )
    for name in NEEDED:
        shutil.copy(REPOSITORY / name, sources)
    stale = sources / OPS / "compiled" / "ops-0123456789abcdef.so"
    stale.parent.mkdir(exist_ok=True)
    stale.write_bytes(b"of other sources")
    done = subprocess.run(
        [sys.executable, "setup.py", "--quiet", "bdist_wheel", "--dist-dir", str(folder)],
        cwd=sources,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env={**os.environ, "PYTHONPATH": "", "CXX": str(partial_compiler(folder / "bin", DESCRIBED))},
    )
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("*.whl")
    return built


def test_it_has_this_machines_operators_and_no_others(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert [name for name in names if name.endswith(".so")] == [f"{OPS}/compiled/{library_name()}"]


def test_it_has_every_file_that_the_repository_has(wheel: Path) -> None:
    files = [path for path in (REPOSITORY / "fastdeploy_lp").rglob("*") if path.is_file()]
    named = {str(path.relative_to(REPOSITORY)) for path in files if path.suffix not in (".pyc", ".so")}
    assert named <= set(zipfile.ZipFile(wheel).namelist())


def test_installed_it_finds_them_without_a_compiler(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    environment = {
        "PYTHONPATH": str(tmp_path / "site"),
        "CXX": "no-such-compiler",
        "FASTDEPLOY_LP_CACHE": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, "-m", "fastdeploy_lp.model_executor.ops"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )
    path, instructions = done.stdout.splitlines()
    assert path == str(tmp_path / "site" / OPS / "compiled" / library_name())
    assert instructions.startswith("products of 8 bits: ")
