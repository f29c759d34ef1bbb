"""A module that is imported through a link at the top of a checkout is the module of the package."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.declared import MODULE
from support.server import REPOSITORY

BOTH_WAYS = """
import importlib, pickle, sys
{first}
names = ["entrypoints", "entrypoints.llm", "entrypoints.openai.protocol.chat", "entrypoints.options", "worker",
         "worker.pipe"]
for name in names:
    linked = importlib.import_module(name)
    real = importlib.import_module(f"fastdeploy_lp.{{name}}")
    assert linked is real is sys.modules[name] is sys.modules[f"fastdeploy_lp.{{name}}"], name
    assert real.__name__ == real.__spec__.name == f"fastdeploy_lp.{{name}}", name
import worker.pipe
from entrypoints.openai import protocol
from entrypoints.llm import LLM
import fastdeploy_lp
assert LLM is fastdeploy_lp.LLM
assert protocol is sys.modules["fastdeploy_lp.entrypoints.openai.protocol"]
assert worker.pipe.read_frame.__module__ == "fastdeploy_lp.worker.pipe"
assert pickle.loads(pickle.dumps(worker.pipe.read_frame)) is worker.pipe.read_frame
assert importlib.reload(worker.pipe) is sys.modules["fastdeploy_lp.worker.pipe"]
try:
    import worker.nothing
except ModuleNotFoundError as error:
    assert error.name == "worker.nothing"
"""


def run(program: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "FASTDEPLOY_LP_PLUGINS": ""}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], cwd=REPOSITORY, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("first", ["from worker import pipe", "import fastdeploy_lp.entrypoints.options"])
def test_a_module_is_one_object_under_both_names(first: str) -> None:
    run(BOTH_WAYS.format(first=first))


def test_a_processor_is_one_object_under_both_names(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MODULE)
    run(
        f"""
import fastdeploy_lp.worker
fastdeploy_lp.worker.__path__.append({str(tmp_path)!r})
from fastdeploy_lp.logits_processor import load_processors
linked, real = load_processors(["one=worker.mine:Good", "two=fastdeploy_lp.worker.mine:Good"])
assert linked.found is real.found
"""
    )
