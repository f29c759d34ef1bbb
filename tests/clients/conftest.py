"""One strict server that every client talks to, and the real Python clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import openai
import pytest
from support.clients.calls import MODEL_NAME
from support.clients.case import BASE, Route
from support.clients.failures import CLIENT_KEY, MAX_BODY_SIZE
from support.clients.python_client import PythonAsker
from support.server import TESTS, ServerProcess
from support.tiny import write_tiny_checkpoint

PROCESSORS = [
    "LogitBiasLogitsProcessor",
    "support.forced:ForcesTokens",
    "ThinkingBudgetLogitsProcessor",
    "support.served_faults:RaisesOnBoom",
]
OPTIONS = [
    *("--served-model-name", MODEL_NAME, "--api-key", "another-key", "--max-body-size", str(MAX_BODY_SIZE)),
    # Programs call operators' routes, too.
    *("--admin-api-key", CLIENT_KEY),
    *("--chat-template", str(TESTS / "data" / "chatml_tools.jinja"), "--trust-request-chat-template"),
    *("--reasoning-parser", "qwen3", "--max-num-seqs", "8", "--max-waiting-requests", "8"),
    *("--allow-uploads", "--logits-processors", *PROCESSORS),
]


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A tiny model that says what it is told to; knows tools and reasoning, wants a key, and ignores no field."""
    checkpoint = write_tiny_checkpoint(tmp_path_factory.mktemp("served"), context=1024)
    with ServerProcess(*OPTIONS, model=str(checkpoint), own_metrics_port=False) as running:
        yield running


@pytest.fixture(scope="session")
def sdk(served: ServerProcess) -> Iterator[openai.Client]:
    """The client as programs make it."""
    with openai.Client(base_url=f"{served.url}/v1", api_key=CLIENT_KEY, max_retries=0) as connected:
        yield connected


@pytest.fixture(scope="session")
def root(served: ServerProcess) -> Iterator[openai.Client]:
    """The client for routes that do not stand below /v1."""
    with openai.Client(base_url=served.url, api_key=CLIENT_KEY, max_retries=0) as connected:
        yield connected


@pytest.fixture(scope="session")
def asker_of(sdk: openai.Client, root: openai.Client) -> Callable[[Route], PythonAsker]:
    """Asks what answers are compared with."""
    return {route: PythonAsker(sdk, root, route) for route in BASE}.__getitem__
