"""The real tokenizer of the default model."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastdeploy_lp.checkpoint import resolve_model
from fastdeploy_lp.engine.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def model_directory() -> Path:
    return resolve_model("smollm2-135m", show_progress=False).directory


@pytest.fixture(scope="session")
def tokenizer(model_directory: Path) -> Tokenizer:
    return Tokenizer(model_directory)
