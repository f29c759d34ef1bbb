"""`fastdeploy-lp` in the tests' own process: one of its own takes more than a second of processor time to begin."""

from __future__ import annotations

import io
import subprocess

import pytest

from fastdeploy_lp.entrypoints.cli import main


def run_here(capfd: pytest.CaptureFixture[str], *arguments: str, lines: str = "") -> subprocess.CompletedProcess[str]:
    """What the command did with `lines` on its standard input; what its worker prints is part of it."""
    status = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdin", io.StringIO(lines))
        capfd.readouterr()
        try:
            main(list(arguments))
        except SystemExit as ended:
            status = int(ended.code or 0)
    shown = capfd.readouterr()
    return subprocess.CompletedProcess(["fastdeploy-lp", *arguments], status, shown.out, shown.err)
