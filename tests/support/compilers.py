"""Compilers for tests that build the operators: the machine's own, made to fail or to save time."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest


def installed_compiler() -> str:
    """A C++ compiler of this machine; the test is skipped where there is none."""
    found = shutil.which("g++") or shutil.which("c++") or shutil.which("clang++")
    if found is None:
        pytest.skip("no C++ compiler on this machine")
    return found


def quick_compiler(directory: Path) -> Path:
    """The machine's compiler without optimization: a tenth of the time, the same library otherwise.

    Every run leaves a line in `runs.txt` beside it.
    """
    return _script(directory, f'echo run >> "{directory}/runs.txt"\nexec "{installed_compiler()}" "$@" -O0')


def runs(directory: Path) -> int:
    """How often the quick compiler in this directory ran."""
    log = directory / "runs.txt"
    return len(log.read_text().splitlines()) if log.exists() else 0


def dying_compiler(directory: Path) -> Path:
    """One that is killed when half of its output is written."""
    return _script(
        directory,
        'while [ "$1" != "-o" ]; do shift; done\nhead -c 4000 /dev/zero > "$2"\nkill -9 $$',
    )


def _script(directory: Path, body: str) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "compiler"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path
