"""Servers that several modules here share."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest
from support.server import TESTS, ServerProcess

TEMPLATE = TESTS / "data" / "chatml_tools.jinja"


@pytest.fixture(scope="session")
def scripted_server() -> Iterator[ServerProcess]:
    """Says what a request forces it to, by a template that knows tools; reads calls and reasoning, and is lenient."""
    template = ["--chat-template", str(TEMPLATE), "--trust-request-chat-template"]
    options = [*template, "--reasoning-parser", "qwen3", "--allow-extra-fields"]
    with ServerProcess("--logits-processors", "support.forced:ForcesTokens", *options) as running:
        yield running


@pytest.fixture
def scripted(scripted_server: ServerProcess) -> Iterator[openai.Client]:
    """The real OpenAI client on `scripted_server`."""
    with openai.Client(base_url=f"{scripted_server.url}/v1", api_key="EMPTY_API_KEY", max_retries=0) as connected:
        yield connected
