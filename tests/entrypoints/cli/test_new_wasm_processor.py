"""What `new-processor --dialect wasm` writes: built where the compiler is installed, and checked."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.server import server_environment
from support.wasm import NO_COMPILER

from fastdeploy_lp.entrypoints.cli.command import main
from fastdeploy_lp.entrypoints.scaffold.wasm_project import LANGUAGES, WasmProject
from fastdeploy_lp.logits_processor.testing import ProcessorHarness
from fastdeploy_lp.logits_processor.testing.check import check_processor


def without(language: str) -> str | None:
    """The reason why a language cannot be built here, None if it can."""
    if language == "c":
        return NO_COMPILER
    if language == "rust":
        target = ["rustc", "--print", "target-libdir", "--target", "wasm32-unknown-unknown"]
        found = shutil.which("rustc") and subprocess.run(target, capture_output=True, text=True, check=False).stdout
        return None if found and Path(found.strip()).is_dir() else "rustc or its target for WebAssembly is missing"
    return None if language == "wat" or shutil.which("asc") else "AssemblyScript's compiler is not installed"


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_folder_builds_a_module_that_passes_its_checks(language: str, tmp_path: Path) -> None:
    main(["new-processor", "my-boost", "--dialect", "wasm", "--language", language, "--directory", str(tmp_path)])
    folder = tmp_path / "my-boost"
    assert {"Makefile", "README.md"} < {path.name for path in folder.iterdir()}
    reason = without(language)
    if reason is not None:
        pytest.skip(reason)
    bin_folder = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    environment = {**server_environment(), "PATH": bin_folder}
    built = subprocess.run(["make", "-C", str(folder)], env=environment, check=False, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    spec = str(folder / "my_boost.wasm")
    args = {} if language == "wat" else {"token_id": 42, "boost": 2.5}
    report = check_processor(spec, [args], skip=("speed",))
    assert report.passed, str(report)
    harness = ProcessorHarness(spec)
    harness.enter("uses it", args)
    harness.enter("does not", None)
    before = np.zeros(harness.vocab_size)
    for _ in range(2):
        after = harness.step({"uses it": before, "does not": before}, {"uses it": 7, "does not": 7})
    assert np.flatnonzero(after["uses it"]).tolist() == ([7] if language == "wat" else [42])
    assert not after["does not"].any()


def test_a_language_is_for_this_dialect_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["new-processor", "my-boost", "--language", "c", "--directory", str(tmp_path)])
    assert "--language: is for --dialect wasm" in capsys.readouterr().err
    with pytest.raises(ValueError, match="language: 'cobol' is none of c, rust"):
        WasmProject("mine", "cobol")
    with pytest.raises(ValueError, match="name: 'My' is not allowed"):
        WasmProject("My")
