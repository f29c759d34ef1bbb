from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.grammars import TinyGrammars
from support.tiny import write_tiny_checkpoint

from fastdeploy_lp.model_executor.ops import compiled_ops


@pytest.fixture(params=["compiled", "paddle"])
def executor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Both executors, chosen as an operator would."""
    name: str = request.param
    if name == "paddle":
        monkeypatch.setenv("FASTDEPLOY_LP_COMPILED_OPS", "0")
        compiled_ops.cache_clear()
    elif compiled_ops() is None:
        pytest.skip("no compiled operators on this machine")
    yield name
    monkeypatch.undo()
    compiled_ops.cache_clear()


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with its tokenizer."""
    return write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def grammars(directory: Path) -> TinyGrammars:
    return TinyGrammars(directory)
