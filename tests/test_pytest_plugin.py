"""The fixture that a processor's author writes one line with, in a pytest run of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support.server import server_environment

TESTS = """
BOOSTS = [{"token_id": 3, "boost": 2.0}, {"token_id": 9, "boost": 4.5}]


def test_right(processor_checks):
    assert processor_checks("support.wrong:Boosts", BOOSTS, skip=["speed"]).passed


def test_wrong(processor_checks):
    processor_checks("support.wrong:WaitsForTheDevice", BOOSTS, skip=["speed"])
"""
NOT_LOADED = "import sys, fastdeploy_lp.pytest_plugin; print('numpy' in sys.modules, 'pydantic' in sys.modules)"


def test_the_fixture_passes_a_right_one_and_shows_the_report_of_a_wrong_one(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(TESTS)
    plugin = ["-p", "fastdeploy_lp.pytest_plugin"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-W", "error", *plugin, "-p", "no:cacheprovider", str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=server_environment() | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        timeout=600,
    )
    assert "1 failed, 1 passed" in done.stdout, done.stdout
    assert "FAIL     host-sync" in done.stdout
    assert "ConformanceError" in done.stdout


def test_a_run_that_does_not_ask_for_it_loads_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", NOT_LOADED], capture_output=True, text=True, env=server_environment())
    assert (done.returncode, done.stdout) == (0, "False False\n"), done.stderr
