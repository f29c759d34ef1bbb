"""What `make serve` does about Python's version, seen from the commands that it would run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.server import REPOSITORY

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="no make on this machine")

HERE = f"{sys.version_info.major}.{sys.version_info.minor}"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in ("Makefile", "setup.py"):
        shutil.copy(REPOSITORY / name, tmp_path)
    return tmp_path


def python_of(path: Path, version: str) -> Path:
    """An executable that runs programs (`-c`) as Python of this version would."""
    path.parent.mkdir(parents=True, exist_ok=True)
    program = f"import sys; sys.version_info = ({version.replace('.', ', ')}, 0); exec(sys.argv[2])"
    path.write_text(f"#!/bin/sh\nexec '{sys.executable}' -c '{program}' \"$@\"\n")
    path.chmod(0o755)
    return path


def environment(checkout: Path, version: str) -> None:
    """Leaves what an earlier `make serve` with this Python has left."""
    python_of(checkout / ".venv" / "bin" / "python", version)
    newer = (checkout / "setup.py").stat().st_mtime + 10
    for later, name in enumerate(("python.done", "serve.done")):
        done = checkout / ".venv" / name
        done.touch()
        os.utime(done, (newer + later, newer + later))


def make(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    variables = {name: value for name, value in os.environ.items() if name not in ("PYTHON", "MAKEFLAGS", "MAKELEVEL")}
    return subprocess.run(["make", *arguments], cwd=checkout, capture_output=True, text=True, env=variables)


@pytest.mark.parametrize("version", ["2.7", "3.9"])
def test_an_old_python_is_refused_in_one_line_before_anything_is_made(checkout: Path, version: str) -> None:
    old = python_of(checkout / "python-old", version)
    done = make(checkout, "serve", f"PYTHON={old}")
    line, own = done.stderr.splitlines()
    assert line == (
        f"error: Python 3.10 or later is needed, and {old} is {version}; name another one: make serve PYTHON=python3.12"
    )
    assert own.startswith("make: ***")
    assert (done.returncode, done.stdout) == (2, "")
    assert not (checkout / ".venv").exists()


def test_an_environment_that_fits_is_used_as_it_is(checkout: Path) -> None:
    environment(checkout, HERE)
    for asked in ([], [f"PYTHON={python_of(checkout / 'python-same', HERE)}"]):
        shown = make(checkout, "-n", "serve", *asked).stdout
        assert "-m fastdeploy_lp" in shown
        assert "-m venv" not in shown
        assert "-m pip" not in shown


@pytest.mark.parametrize("version", ["3.9", "2.7"])
def test_an_environment_of_an_old_python_is_made_anew(checkout: Path, version: str) -> None:
    environment(checkout, version)
    assert "python3 -m venv --clear .venv\n" in make(checkout, "-n", "serve").stdout


def test_an_environment_whose_python_is_gone_is_made_anew(checkout: Path) -> None:
    environment(checkout, HERE)
    (checkout / ".venv" / "bin" / "python").unlink()
    assert "python3 -m venv --clear .venv\n" in make(checkout, "-n", "serve").stdout


def test_an_environment_of_another_python_than_the_one_asked_for_is_made_anew(checkout: Path) -> None:
    environment(checkout, "3.10")
    asked = python_of(checkout / "python-other", "3.12")
    assert f"{asked} -m venv --clear .venv\n" in make(checkout, "-n", "serve", f"PYTHON={asked}").stdout


def test_a_failure_of_pip_ends_the_set_up(checkout: Path) -> None:
    """Also on a terminal, where its output goes through another program."""
    (line,) = [line for line in make(checkout, "-n", "serve").stdout.splitlines() if "--editable" in line]
    for terminal in (True, False):
        shown = line.replace("[ -t 1 ]", "true" if terminal else "false").replace(".venv/bin/python", "false")
        assert subprocess.run(["sh", "-c", shown], cwd=checkout, capture_output=True).returncode == 1
