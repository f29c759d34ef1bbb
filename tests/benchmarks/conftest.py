"""Fixtures of tests of the benchmarks."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

STAND_IN = Path(__file__).with_name("stand_in_server.py")


@pytest.fixture
def llama_server(tmp_path: Path) -> Path:
    """A program that takes llama-server's place."""
    program = tmp_path / "llama-server"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{STAND_IN}" "$@"\n')
    program.chmod(0o755)
    return program
