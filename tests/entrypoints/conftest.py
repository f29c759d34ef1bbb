"""Fixtures for tests of the entry points."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.server import ServerProcess

STRICT_SERVER_CONTEXT = 160


@pytest.fixture(scope="session")
def strict_server() -> Iterator[ServerProcess]:
    """A small context, a name of its own, metrics on the API's port, and processors whose arguments are all known."""
    processors = ["--logits-processors", "LogitBiasLogitsProcessor"]
    options = ["--served-model-name", "smol", "--max-model-len", str(STRICT_SERVER_CONTEXT)]
    with ServerProcess(*processors, *options, own_metrics_port=False) as running:
        yield running
