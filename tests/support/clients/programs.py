"""Clients that have environments of their own; `make test-clients` sets these up and names them as needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.server import TESTS

CLIENTS = TESTS / "clients"
NODE_MODULES = CLIENTS / "node" / "node_modules"
PYTHON = Path(sys.prefix) / "clients" / "bin" / "python"
# Names of environments without which tests fail instead of being left out.
NEEDED = "FASTDEPLOY_LP_NEEDED_CLIENTS"
PROGRAM_SECONDS = 600.0


def require(name: str, path: Path) -> None:
    """Leave a test out if what it needs is not installed, unless that is needed."""
    if path.exists():
        return
    if name in os.environ.get(NEEDED, "").split():
        pytest.fail(f"{NEEDED} names {name}, and there is no {path}")
    pytest.skip(f"{name} clients are not installed; `make test-clients` does that")


def told_by(command: list[str], plan: dict[str, Any]) -> Any:
    """What a program prints as JSON that reads this plan from its standard input."""
    done = subprocess.run(
        command, input=json.dumps(plan), capture_output=True, encoding="utf-8", timeout=PROGRAM_SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
