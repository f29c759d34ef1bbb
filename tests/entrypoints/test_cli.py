"""The `fastdeploy-lp` command and the modules that can be run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.server import REPOSITORY

from fastdeploy_lp.version import __version__

COMMAND = str(Path(sys.executable).with_name("fastdeploy-lp"))


def run(*command: str) -> subprocess.CompletedProcess[str]:
    """From the root of the checkout, as a user would."""
    return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=REPOSITORY)


def test_version() -> None:
    done = run(COMMAND, "--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{__version__}\n", "")


def test_serve_help_lists_the_options() -> None:
    done = run(COMMAND, "serve", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: fastdeploy-lp serve ")
    assert "--logits-processors" in done.stdout


@pytest.mark.parametrize("option", ["--help", "-h"])
def test_help_names_the_subcommand(option: str) -> None:
    done = run(COMMAND, option)
    assert (done.returncode, done.stderr) == (0, "")
    assert "fastdeploy-lp serve" in done.stdout


@pytest.mark.parametrize("arguments", [[], ["bench"], ["--serve"], ["--version", "serve"]])
def test_unknown_subcommand_shows_the_usage(arguments: list[str]) -> None:
    done = run(COMMAND, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert "usage: fastdeploy-lp serve" in done.stderr
    assert "Traceback" not in done.stderr


def test_serve_tells_mistakes_in_one_line() -> None:
    done = run(COMMAND, "serve", "--model", "nowhere", "--logits-processors", "Nothing")
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: logits_processors: 'Nothing'")


@pytest.mark.parametrize("module", ["fastdeploy_lp.entrypoints.openai.api_server", "entrypoints.openai.api_server"])
def test_api_server_runs_as_a_module(module: str) -> None:
    """The second name is the link at the root of the checkout."""
    done = run(sys.executable, "-m", module, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "--logits-processors" in done.stdout
