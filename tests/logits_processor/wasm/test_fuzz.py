"""Hostile modules in a separate process; benchmarks/wasm_fuzz.py runs 100,000."""

from __future__ import annotations

import json
import subprocess
import sys

from support.server import server_environment


def test_hostile_modules_crash_nothing_reach_no_other_row_and_leave_no_memory() -> None:
    command = [sys.executable, "-m", "support.wasm_fuzz", "20261125", "150"]
    ran = subprocess.run(command, env=server_environment(), check=False, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    report = json.loads(ran.stdout.splitlines()[-1])
    assert sum(report["outcomes"].values()) == 150
    assert min(report["outcomes"][each] for each in ("ran", "fault", "refused")) > 0
    assert report["left"] == 0
    assert report["grown"] < 48 << 20
