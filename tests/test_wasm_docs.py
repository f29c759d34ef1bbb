"""docs/wasm.md: its walk is run as it is printed, but for the address, and its tables are held against the code."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from support.server import REPOSITORY, ServerProcess, server_environment
from support.tiny_checkpoint import write_tiny_checkpoint
from support.wasm import NO_COMPILER

from fastdeploy_lp.entrypoints.openai.uploads.store import MAX_UPLOAD_BYTES, MAX_UPLOADS_EACH
from fastdeploy_lp.logits_processor.registry import MAX_BROUGHT
from fastdeploy_lp.logits_processor.wasm.edits import EDITS_WORDS, MAX_EMITS, MAX_TEXT_BYTES
from fastdeploy_lp.logits_processor.wasm.header import header_text
from fastdeploy_lp.logits_processor.wasm.interface import HOST, IMPORTS, OPTIONAL, REQUIRED, STEPS
from fastdeploy_lp.logits_processor.wasm.limits import MAX_INSTANCES, MAX_MODULE_BYTES, MEBIBYTE, WasmLimits

DOCUMENT = (REPOSITORY / "docs" / "wasm.md").read_text()
WALK = DOCUMENT.partition("## From nothing to a used module\n")[2].partition("\n## ")[0]
PRINTED_URL = "http://127.0.0.1:8180"
STARTS = "fastdeploy-lp serve "
SECONDS = 300.0


def blocks() -> list[str]:
    return re.findall(r"^```bash\n(.*?)^```$", WALK, re.DOTALL | re.MULTILINE)


def folder_of_commands(tmp_path: Path) -> Path:
    """A folder with this tree's `fastdeploy-lp`."""
    command = tmp_path / "bin" / "fastdeploy-lp"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m fastdeploy_lp "$@"\n')
    command.chmod(0o755)
    return command.parent


@pytest.mark.slow
@pytest.mark.skipif(NO_COMPILER is not None, reason=str(NO_COMPILER))
def test_the_walk_leads_to_a_used_module(tmp_path: Path) -> None:
    (start,) = [block for block in blocks() if block.startswith(STARTS)]
    before, after = blocks()[: blocks().index(start)], blocks()[blocks().index(start) + 1 :]
    path = f"{folder_of_commands(tmp_path)}{os.pathsep}{os.environ['PATH']}"
    environment = {**server_environment(), "PATH": path}

    def run(script: str) -> str:
        ran = subprocess.run(
            ["bash", "-ec", script], cwd=tmp_path, env=environment, check=False, capture_output=True, text=True
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    assert " 0 failed" in run("\n".join(before))
    words = shlex.split(start.removeprefix(STARTS))
    options = [word for word in words[1:] if word not in ("--port", "8180")]
    with ServerProcess(*options, model=write_tiny_checkpoint(tmp_path)) as server:
        shown = run("\n".join([*after[:-1], "echo", after[-1]]).replace(PRINTED_URL, server.url))
        answer, deleted = shown.splitlines()
        assert json.loads(answer)["choices"][0]["token_ids"] == [42] * 4
        assert json.loads(deleted)["deleted"]
        assert httpx.get(f"{server.url}/v1/logits_processors", timeout=SECONDS).json()["data"] == []


def names(heading: str) -> list[str]:
    """The first words of a table's rows."""
    rows = DOCUMENT.partition(f"| {heading} | meaning |")[2].partition("\n\n")[0].splitlines()[2:]
    return [re.sub(r"[(`].*", "", row.removeprefix("| `")) for row in rows]


def test_the_tables_have_every_function() -> None:
    assert set(names("export")) == REQUIRED.keys() | STEPS.keys() | OPTIONAL.keys()
    assert names("import") == [name for module, name in HOST if module == IMPORTS]
    for module, name in HOST:
        assert module != IMPORTS or f'LP_IMPORT("{name}")' in header_text()


def test_the_bounds_are_those_of_the_code() -> None:
    rows = dict(re.findall(r"^\| (.*?) \| (.*) \|$", DOCUMENT.partition("## Bounds")[2].partition("\n## ")[0], re.M))
    limits = WasmLimits()
    assert rows["linear memory of an instance"] == f"{limits.memory // MEBIBYTE} MiB"
    assert rows["linear memory of all instances"] == f"{limits.total_memory // MEBIBYTE // 1024} GiB"
    assert rows["instances"] == f"{MAX_INSTANCES:,}"
    assert rows["instructions of an instance's start"] == f"{limits.init_fuel:,}"
    assert rows["time of a step, of a start"] == f"{limits.step_seconds:g} s, {limits.init_seconds:g} s"
    assert rows["uploads of a key, of a server"] == f"{MAX_UPLOADS_EACH}, {MAX_BROUGHT}"
    assert rows["values to emit in a step; bytes of a text"] == f"{MAX_EMITS}; {MAX_TEXT_BYTES // 1024} KiB"
    sizes = f"{MAX_MODULE_BYTES // MEBIBYTE} MiB, {MAX_UPLOAD_BYTES // MEBIBYTE} MiB"
    assert rows["bytes of a declared module, of an upload"] == sizes
    assert any(row.startswith(f"{limits.step_fuel:,}") for row in rows.values())
    assert f"the place of {EDITS_WORDS} words" in DOCUMENT
