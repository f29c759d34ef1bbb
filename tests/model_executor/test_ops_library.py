"""Where the compiled operators come from: every test runs a process of its own on a copy of the package.

The copy has no packaged library, and its `ops/__init__.py` is empty: looking for a library then does not load Paddle.
Of the sources it has those of the functions that the processes call, which compile in a second.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.compilers import dying_compiler, quick_compiler, runs
from support.server import REPOSITORY, TESTS
from support.tiny import GOLDEN

CALLED = ("threads.cpp", "tile_unit.cpp")
PROBE = """
import json, logging, sys
logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(message)s")
from fastdeploy_lp.model_executor.ops.library import compiled_ops
logging.getLogger("fastdeploy_lp").setLevel(logging.INFO)
found = compiled_ops()
again = compiled_ops()
print(json.dumps({
    "path": found and found._name, "threads": found and found.fdlp_num_threads(), "same": found is again,
    "paddle": "paddle" in sys.modules,
}))
"""
GREEDY = """
import json, logging, sys, warnings
warnings.simplefilter("ignore")
logging.basicConfig(stream=sys.stderr, format="%(levelname)s %(message)s")
from support.sequences import request, run_to_end, tiny_engine
from support.tiny import GOLDEN
logging.getLogger("fastdeploy_lp").setLevel(logging.INFO)
cases = json.loads((GOLDEN / "tiny-llama" / "reference.json").read_text())["cases"]
for _ in range(2):
    engine = tiny_engine(name="tiny-llama", max_model_len=128, max_num_seqs=3)
    made = [request(str(i), case["prompt_ids"], max_tokens=len(case["greedy_ids"]), ignore_eos=True)
            for i, case in enumerate(cases)]
    ran = run_to_end(engine, made)
print(json.dumps([ran[each.request_id].token_ids for each in made]))
print(type(engine.runner._model._executor).__name__)
"""


@dataclass(frozen=True)
class Found:
    """What a process found: the library's path or None, and what it logged."""

    path: Path | None
    log: list[str]

    @property
    def warnings(self) -> list[str]:
        return [line for line in self.log if line.startswith("WARNING")]


class Installation:
    """A copy of the package with a cache and a compiler of its own."""

    def __init__(self, root: Path) -> None:
        self.root, self.cache, self.bin = root, root / "cache", root / "bin"
        ignored = shutil.ignore_patterns("__pycache__", "compiled")
        shutil.copytree(REPOSITORY / "fastdeploy_lp", root / "site" / "fastdeploy_lp", ignore=ignored)
        self.ops = root / "site" / "fastdeploy_lp" / "model_executor" / "ops"
        (self.ops / "__init__.py").write_text('"""Empty, see above."""\n')
        for source in (self.ops / "csrc").rglob("*.cpp"):
            if source.name not in CALLED:
                source.unlink()
        self.library_name = _name_of_library(self.ops / "build.py")
        self.compiler = quick_compiler(self.bin)

    @property
    def packaged(self) -> Path:
        return self.ops / "compiled" / self.library_name

    @property
    def cached(self) -> Path:
        return self.cache / "ops" / self.library_name

    def start(self, **env: str) -> subprocess.Popen[str]:
        own = {"PYTHONPATH": str(self.root / "site"), "FASTDEPLOY_LP_CACHE": str(self.cache), "CXX": str(self.compiler)}
        return subprocess.Popen(
            [sys.executable, "-c", PROBE],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.root,
            env={**os.environ, **own, **env},
        )

    def find(self, **env: str) -> Found:
        return self.result(self.start(**env))

    def result(self, process: subprocess.Popen[str]) -> Found:
        out, log = process.communicate()
        assert process.returncode == 0, log
        said = json.loads(out)
        assert said["same"]
        assert not said["paddle"]
        assert (said["threads"] is None) == (said["path"] is None)
        return Found(said["path"] and Path(said["path"]), log.splitlines())


def _name_of_library(build: Path) -> str:
    spec = importlib.util.spec_from_file_location("copied_build", build)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    name: str = module.library_name()
    return name


@pytest.fixture
def installation(tmp_path: Path) -> Installation:
    return Installation(tmp_path)


NO_COMPILER = {"CXX": "", "PATH": ""}


def test_built_on_first_use_and_found_in_the_cache_ever_after(installation: Installation) -> None:
    umask = os.umask(0)
    try:
        first = installation.find()
    finally:
        os.umask(umask)
    assert first.path == installation.cached
    assert installation.cached.stat().st_mode & 0o777 == 0o755
    assert {each.stat().st_mode & 0o777 for each in (installation.cached.parent, installation.cache)} == {0o700}
    assert first.warnings == []
    assert any("compiled the operators" in line for line in first.log)
    assert installation.find(**NO_COMPILER) == Found(installation.cached, [])
    assert runs(installation.bin) == 1


def test_processes_that_start_together_compile_once(installation: Installation) -> None:
    together = [installation.start() for _ in range(3)]
    assert [installation.result(process).path for process in together] == [installation.cached] * 3
    assert runs(installation.bin) == 1
    assert [path.name for path in installation.cached.parent.iterdir()] == [installation.library_name]


def test_the_packaged_library_needs_neither_compiler_nor_cache(installation: Installation) -> None:
    installation.find()
    installation.packaged.parent.mkdir()
    installation.cached.rename(installation.packaged)
    (installation.root / "file").write_text("in the way")
    nowhere = str(installation.root / "file" / "cache")
    assert installation.find(**NO_COMPILER, FASTDEPLOY_LP_CACHE=nowhere) == Found(installation.packaged, [])


def test_the_library_of_other_sources_is_not_taken(installation: Installation) -> None:
    old = installation.cached.with_name("ops-0123456789abcdef.so")
    old.parent.mkdir(parents=True)
    old.write_bytes(b"not for these sources")
    source = installation.ops / "csrc" / "threads.cpp"
    source.write_text(source.read_text() + "\n")
    found = installation.find()
    assert found.path is not None
    assert found.path.parent == installation.cached.parent
    assert found.path.name not in (old.name, installation.library_name)


def test_what_a_killed_build_left_is_never_loaded(installation: Installation) -> None:
    left = installation.cached.with_name(f".{installation.cached.stem}.0123abcd.partial")
    left.parent.mkdir(parents=True)
    left.write_bytes(b"\x7fELF half a library")
    dying = dying_compiler(installation.root / "dying")
    found = installation.find(CXX=str(dying))
    assert found.path is None
    assert len(found.warnings) == 1
    assert [path.name for path in left.parent.iterdir()] == [left.name]
    assert installation.find().path == installation.cached


def test_operators_that_others_can_have_written_are_not_loaded(installation: Installation) -> None:
    """And nothing is compiled into such a directory."""
    installation.cached.parent.mkdir(parents=True)
    installation.cached.write_bytes(b"of anybody")
    installation.cache.chmod(0o777)
    found = installation.find()
    assert found.path is None
    (warning,) = found.warnings
    assert f"other users may write to {installation.cache} (mode 777)" in warning
    installation.cached.unlink()
    assert installation.find().path is None
    assert not installation.cached.exists()
    assert runs(installation.bin) == 0


def test_the_package_of_another_machine_is_named_where_nothing_can_be_compiled(installation: Installation) -> None:
    other = installation.packaged.with_name("ops-0123456789abcdef.so")
    other.parent.mkdir()
    other.write_bytes(b"for another processor")
    found = installation.find(**NO_COMPILER)
    assert found.path is None
    (warning,) = found.warnings
    assert "no C++ compiler" in warning
    assert warning.endswith("; ops-0123456789abcdef.so of the package is for another processor or other sources")
    assert installation.find().path == installation.cached


@pytest.mark.parametrize("compiler", ["", "no-such-compiler"])
def test_without_a_compiler_there_is_one_warning_and_no_library(compiler: str, installation: Installation) -> None:
    found = installation.find(CXX=compiler, PATH="")
    assert found.path is None
    (warning,) = found.warnings
    assert "no C++ compiler" in warning
    assert compiler in warning
    assert "Paddle" in warning


def test_a_cache_that_cannot_be_written_costs_a_warning(installation: Installation) -> None:
    (installation.root / "file").write_text("in the way")
    nowhere = installation.root / "file" / "cache"
    found = installation.find(FASTDEPLOY_LP_CACHE=str(nowhere))
    assert found.path is None
    (warning,) = found.warnings
    assert str(nowhere) in warning


def test_the_switch_does_without_the_operators_and_without_a_warning(installation: Installation) -> None:
    found = installation.find(FASTDEPLOY_LP_COMPILED_OPS="0")
    assert found.path is None
    assert found.log == ["INFO FASTDEPLOY_LP_COMPILED_OPS=0: Paddle's own operators compute"]
    assert runs(installation.bin) == 0


def test_the_log_names_the_instructions_of_products(installation: Installation) -> None:
    found = installation.find(FASTDEPLOY_LP_TILES="emulated")
    (line,) = (line for line in found.log if "products of 8 bits" in line)
    assert line.endswith("; tiles: emulated, very slow (FASTDEPLOY_LP_TILES=emulated)")


# What computes then


def test_paddle_gives_the_same_greedy_tokens_and_says_once_that_it_computes(installation: Installation) -> None:
    shutil.copy(REPOSITORY / "fastdeploy_lp" / "model_executor" / "ops" / "__init__.py", installation.ops)
    paths = os.pathsep.join([str(installation.root / "site"), str(TESTS)])
    own = {"PYTHONPATH": paths, "FASTDEPLOY_LP_CACHE": str(installation.cache)}
    done = subprocess.run(
        [sys.executable, "-c", GREEDY],
        capture_output=True,
        text=True,
        cwd=installation.root,
        env={**os.environ, **own, "CXX": "no-such-compiler"},
    )
    assert done.returncode == 0, done.stderr
    tokens, executor = done.stdout.splitlines()[-2:]
    cases = json.loads((GOLDEN / "tiny-llama" / "reference.json").read_text())["cases"]
    assert json.loads(tokens) == [case["greedy_ids"] for case in cases]
    assert executor == "PaddleDecoder"
    said = [line for line in done.stderr.splitlines() if "Paddle's own" in line]
    assert len(said) == 1
    assert said[0].startswith("WARNING")
