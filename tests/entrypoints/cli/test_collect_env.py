"""What `fastdeploy-lp collect-env` tells, and what it keeps to itself."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib.metadata import version

from support.server import PLUGINS, REPOSITORY

from fastdeploy_lp.version import __version__

PROGRAM = "from fastdeploy_lp.entrypoints.cli import main; main(['collect-env'])"


def report(**variables: str) -> str:
    environment = {**os.environ, **variables}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM], capture_output=True, text=True, env=environment, cwd=REPOSITORY
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def section(text: str, title: str) -> list[str]:
    lines = text.partition(f"{title}:\n")[2].splitlines()
    return [line.strip() for line in lines[: next((i for i, line in enumerate(lines) if line[:1] != " "), None)]]


def test_the_report() -> None:
    """One of the packages that are installed for tests declares processors."""
    path = os.pathsep.join([str(REPOSITORY), str(PLUGINS)])
    secrets = {"FASTDEPLOY_LP_API_KEY": "geheim-1", "FLAGS_my_token": "geheim-2", "DATABASE_PASSWORD": "geheim-3"}
    text = report(OMP_NUM_THREADS="3", PYTHONPATH=path, **secrets)
    software, environment = section(text, "Software"), section(text, "Environment")
    assert software[0].startswith(f"fastdeploy-lp {__version__} in ")
    assert software[1].startswith(f"Python {platform.python_version()} ")
    assert f"numpy {version('numpy')}" in software
    assert any(line.startswith("paddlepaddle ") for line in software)
    assert platform.machine() in section(text, "Processor")[0]
    assert section(text, "Compiled operators")[0].endswith(".so")
    assert section(text, "Platform")[0].startswith("cpu: ")
    assert "OMP_NUM_THREADS=3" in section(text, "Worker's settings")
    assert "OMP_NUM_THREADS=3" in environment
    assert "geheim" not in text
    assert "FASTDEPLOY_LP_API_KEY=***" in environment
    assert "DATABASE" not in text
    assert any(" = " in line and ":" in line for line in section(text, "Installed plugins"))


def test_what_there_is_none_of() -> None:
    text = report(FASTDEPLOY_LP_COMPILED_OPS="0", PYTHONPATH=str(REPOSITORY))
    assert section(text, "Compiled operators") == ["Paddle's own: FASTDEPLOY_LP_COMPILED_OPS=0"]
    assert section(text, "Installed plugins") == ["none"]


def test_the_instructions_of_products() -> None:
    """Of the library that a worker would load; the choice may be wrong."""
    chosen = {choice: report(FASTDEPLOY_LP_TILES=choice, PYTHONPATH=str(REPOSITORY)) for choice in ("emulated", "on")}
    path, products = section(chosen["emulated"], "Compiled operators")
    assert path.endswith(".so")
    assert products.startswith("products of 8 bits: ")
    assert products.endswith("; tiles: emulated, very slow (FASTDEPLOY_LP_TILES=emulated)")
    assert section(chosen["on"], "Compiled operators") == [
        path,
        "products of 8 bits: FASTDEPLOY_LP_TILES: 'on' is none of auto, off, emulated",
    ]


def test_a_platform_that_cannot_be_used_is_told() -> None:
    text = report(FASTDEPLOY_LP_PLATFORM="tpu", PYTHONPATH=str(REPOSITORY))
    (line,) = section(text, "Platform")
    assert line.startswith("FASTDEPLOY_LP_PLATFORM: 'tpu' is no platform; there are: ")
    assert section(text, "Installed plugins") == ["none"]
