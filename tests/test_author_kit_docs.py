"""docs/author-kit.md is run as it is printed, in a fresh environment, and its tables are held against the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.fresh_venv import FreshVenv
from support.server import REPOSITORY

from fastdeploy_lp.entrypoints.cli.command import main
from fastdeploy_lp.logits_processor.testing import CHECK_NAMES

DOCUMENT = (REPOSITORY / "docs" / "author-kit.md").read_text()


def code_blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", DOCUMENT, re.DOTALL | re.MULTILINE)


def table(heading: str) -> list[str]:
    """The first words of the rows of a table."""
    rows = DOCUMENT.partition(f"| {heading} |")[2].partition("\n\n")[0].splitlines()[2:]
    return [re.sub(r"[ `|].*", "", row.removeprefix("| `")) for row in rows]


def test_the_commands_and_programs_run(tmp_path: Path) -> None:
    (commands,) = code_blocks("bash")
    tests, program = code_blocks("python")
    assert DOCUMENT.count("```") == 2 * 3
    fresh = FreshVenv(tmp_path / "venv")
    begun = fresh.run("bash", "-ec", commands, cwd=tmp_path, plugins=("my_boost",))
    assert begun.returncode == 0, begun.stdout + begun.stderr
    assert " 4 passed" in begun.stdout
    passed = rf"{len(CHECK_NAMES)} passed, 0 failed, 0 with advice, 0 skipped; \d{{3,}} steps ran"
    assert re.fullmatch(passed, begun.stdout.splitlines()[-1])
    (tmp_path / "test_mine.py").write_text(tests)
    # One process for both, since Paddle takes a while to load.
    (tmp_path / "test_program.py").write_text("def test_program():\n" + re.sub("^", "    ", program, flags=re.M))
    files = ["test_mine.py", "test_program.py"]
    done = fresh.run("pytest", "-s", "-W", "error", "--import-mode=importlib", *files, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert " 3 passed" in done.stdout
    assert "Finding(check='contract', outcome=<Outcome.PASS: 'pass'>" in done.stdout


def test_every_check_is_told_in_its_order() -> None:
    assert table("check") == list(CHECK_NAMES)


def test_every_option_of_check_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["check", "--help"])
    options = set(re.findall(r"--[a-z][a-z-]+", capsys.readouterr().out)) - {"--help", "--logits-processors"}
    assert set(table("option")) == options
