"""What `fastdeploy-lp collect-env` tells, and what it keeps to itself."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version

import pytest
from support.forks import command, run_forks
from support.server import PLUGINS, REPOSITORY

from fastdeploy_lp.version import __version__

MODULES = ("fastdeploy_lp.entrypoints.cli.collect_env", "fastdeploy_lp.model_executor.ops")

# One of the packages that are installed for tests declares processors.
SECRETS = {"FASTDEPLOY_LP_API_KEY": "geheim-1", "FLAGS_my_token": "geheim-2", "DATABASE_PASSWORD": "geheim-3"}
PROGRAMS = {
    "everything": command("collect-env", variables={"OMP_NUM_THREADS": "3", **SECRETS}, paths=[str(PLUGINS)]),
    "nothing": command("collect-env", variables={"FASTDEPLOY_LP_COMPILED_OPS": "0"}),
    "emulated": command("collect-env", variables={"FASTDEPLOY_LP_TILES": "emulated"}),
    "on": command("collect-env", variables={"FASTDEPLOY_LP_TILES": "on"}),
    "tpu": command("collect-env", variables={"FASTDEPLOY_LP_PLATFORM": "tpu"}),
}


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the command tells in each environment, without a warning."""
    folder = tmp_path_factory.mktemp("reports")
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHONWARNINGS": "error"}
    ran = run_forks(list(PROGRAMS.values()), folder, environment, modules=MODULES)
    assert [(done.returncode, done.stderr) for done in ran] == [(0, "")] * len(PROGRAMS)
    return {name: done.stdout for name, done in zip(PROGRAMS, ran, strict=True)}


def section(text: str, title: str) -> list[str]:
    lines = text.partition(f"{title}:\n")[2].splitlines()
    return [line.strip() for line in lines[: next((i for i, line in enumerate(lines) if line[:1] != " "), None)]]


def test_the_report(reports: dict[str, str]) -> None:
    text = reports["everything"]
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


def test_what_there_is_none_of(reports: dict[str, str]) -> None:
    text = reports["nothing"]
    assert section(text, "Compiled operators") == ["Paddle's own: FASTDEPLOY_LP_COMPILED_OPS=0"]
    assert section(text, "Installed plugins") == ["none"]


def test_the_instructions_of_products(reports: dict[str, str]) -> None:
    """Of the library that a worker would load; the choice may be wrong."""
    path, products = section(reports["emulated"], "Compiled operators")
    assert path.endswith(".so")
    assert products.startswith("products of 8 bits: ")
    assert products.endswith("; tiles: emulated, very slow (FASTDEPLOY_LP_TILES=emulated)")
    assert section(reports["on"], "Compiled operators") == [
        path,
        "products of 8 bits: FASTDEPLOY_LP_TILES: 'on' is none of auto, off, emulated",
    ]


def test_a_platform_that_cannot_be_used_is_told(reports: dict[str, str]) -> None:
    text = reports["tpu"]
    (line,) = section(text, "Platform")
    assert line.startswith("FASTDEPLOY_LP_PLATFORM: 'tpu' is no platform; there are: ")
    assert section(text, "Installed plugins") == ["none"]
