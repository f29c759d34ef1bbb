"""Fixtures for tests of the HTTP server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.guarded import guarded_server_process
from support.server import ServerProcess
from support.tiny import write_tiny_checkpoint


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model that speaks nonsense, fast."""
    return write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def guarded_server(tiny_checkpoint: Path) -> Iterator[ServerProcess]:
    """The tiny model behind everything that can stand before the routes."""
    with guarded_server_process(tiny_checkpoint) as running:
        yield running
