"""Entries of OpenMP runtimes: those of one process, or of processes that are gone, and no others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fastdeploy_lp.platforms import shared_memory


@pytest.fixture
def dead() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def entered(folder: Path, pid: int, user: int) -> str:
    name = f"__KMP_REGISTERED_LIB_{pid}_{user}"
    (folder / name).write_text("")
    return name


def test_entries_of_one_process_are_removed(tmp_path: Path) -> None:
    entered(tmp_path, 12, 0)
    others = {entered(tmp_path, 123, 0), entered(tmp_path, 1, 0), entered(tmp_path, 2, 12)}
    shared_memory.remove_of(12, [tmp_path, tmp_path / "missing"])
    assert {path.name for path in tmp_path.iterdir()} == others


def test_entries_of_processes_that_are_gone_are_removed(tmp_path: Path, dead: int) -> None:
    entered(tmp_path, dead, os.getuid())
    (tmp_path / "__KMP_REGISTERED_LIB_x_0").write_text("")
    kept = {entered(tmp_path, os.getpid(), os.getuid()), entered(tmp_path, dead, os.getuid() + 1)}
    shared_memory.remove_of_the_dead([tmp_path])
    assert {path.name for path in tmp_path.iterdir()} == kept | {"__KMP_REGISTERED_LIB_x_0"}
