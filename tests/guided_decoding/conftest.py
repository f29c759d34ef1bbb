"""The tokens that grammars are tried with."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.grammars import TinyGrammars
from support.tiny import write_tiny_checkpoint


@pytest.fixture(scope="session")
def tiny_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model's tokenizer."""
    return write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def grammars(tiny_directory: Path) -> TinyGrammars:
    return TinyGrammars(tiny_directory)
