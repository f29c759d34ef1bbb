"""Every block of code in docs/logits-processors.md is run as it is printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.server import REPOSITORY, ServerProcess, server_environment

DOCUMENT = (REPOSITORY / "docs" / "logits-processors.md").read_text()
PROGRAM_SECONDS = 120.0


def code_blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", DOCUMENT, re.DOTALL | re.MULTILINE)


def modules() -> dict[str, str]:
    """File names of the blocks that are files, and their contents."""
    named = [re.match(r"# file: (\S+)\n", block) for block in code_blocks("python")]
    return {found.group(1): found.string for found in named if found is not None}


def program_parts() -> list[str]:
    """The blocks that make up the program, in order."""
    return [block for block in code_blocks("python") if block.startswith("# run\n")]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Holds the document's modules."""
    for name, content in modules().items():
        (tmp_path / name).write_text(content)
    return tmp_path


def run_bash(command: str, server: ServerProcess) -> str:
    environment = {**os.environ, "SERVER": server.url}
    done = subprocess.run(["bash", "-ec", command], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_no_block_of_code_is_left_out_of_these_tests() -> None:
    assert len(modules()) == 4
    assert len(program_parts()) == 6
    assert len(code_blocks("bash")) == 2
    assert len(re.findall("^ *```", DOCUMENT, re.MULTILINE)) == 2 * (4 + 6 + 2)


def test_the_program_runs_with_the_modules_beside_it(directory: Path) -> None:
    environment = server_environment()
    environment["PYTHONPATH"] = os.pathsep.join([str(directory), environment["PYTHONPATH"]])
    program = "\n".join(program_parts())
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env=environment,
        cwd=directory,
        timeout=PROGRAM_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    # The error that the document quotes behind its `print`.
    (quoted,) = re.findall(r"print\(error\)  # (.*)", program)
    assert quoted in done.stdout.splitlines()
    names = ["LogitBiasLogitsProcessor", "second", "BanTokens", "OnlyToken", "NoImmediateRepeat", "scale"]
    names += ["temperature", "ForcedSequenceLogitsProcessor"]
    listed = [line.split()[:2] for line in done.stdout.splitlines() if re.match(r"\d+ ", line)]
    assert listed == [[str(order), name] for order, name in enumerate(names)]


def test_the_curl_line_selects_by_name(server: ServerProcess) -> None:
    (command,) = [block for block in code_blocks("bash") if "chat/completions" in block]
    assert '"content":"::::"' in run_bash(command, server)


def test_the_curl_line_lists_the_declared_processors(server: ServerProcess) -> None:
    (command,) = [block for block in code_blocks("bash") if "chat/completions" not in block]
    assert '"name":"LogitBiasLogitsProcessor"' in run_bash(command, server)
