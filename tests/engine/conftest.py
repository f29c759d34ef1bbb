"""The real tokenizer of the default model, and an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
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


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """A loop on which the tests of a module continue what earlier ones left; Python 3.10 has no `asyncio.Runner`."""
    made = asyncio.new_event_loop()
    yield made
    made.run_until_complete(made.shutdown_asyncgens())
    made.close()
