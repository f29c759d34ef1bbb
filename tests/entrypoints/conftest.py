"""Fixtures for tests of the entry points."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.server import ServerProcess

STRICT_SERVER_CONTEXT = 160


@pytest.fixture(scope="session")
def strict_server(light_checkpoint: Path) -> Iterator[ServerProcess]:
    """As `light_server`, with a small context, metrics on the API's port, and processors whose arguments are known."""
    processors = ["--logits-processors", "LogitBiasLogitsProcessor"]
    options = ["--served-model-name", "smol", "--max-model-len", str(STRICT_SERVER_CONTEXT)]
    with ServerProcess(*processors, *options, model=str(light_checkpoint), own_metrics_port=False) as running:
        yield running
