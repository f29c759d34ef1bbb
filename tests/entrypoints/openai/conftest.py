"""Servers that several modules here share."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from support.distributions import install
from support.guarded import guarded_server_process
from support.held import SPECS as HELD
from support.server import DEFAULT_MODEL, REPOSITORY, TESTS, ServerProcess
from support.supervised import supervised_server
from support.tiny import write_tiny_checkpoint

from fastdeploy_lp import LLM
from fastdeploy_lp.config.log_format import FORMAT_VARIABLE, LEVEL_VARIABLE

PREPARING = [f"support.preparing:{name}" for name in ("LooksUp", "Skips", "Holds")]
ACTING = ["support.acting:Acts", "support.acting:ActsTyped", "ClassProbabilitiesLogitsProcessor"]
REWINDING = ["PhraseBanLogitsProcessor", "support.rewinding:Rewinds"]
TEMPLATE = TESTS / "data" / "chatml_tools.jinja"


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model that speaks nonsense, fast."""
    return write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def guarded_server(tiny_checkpoint: Path) -> Iterator[ServerProcess]:
    """The tiny model behind everything that can stand before the routes."""
    with guarded_server_process(tiny_checkpoint) as running:
        yield running


@pytest.fixture(scope="session")
def scripted_server(light_checkpoint: Path) -> Iterator[ServerProcess]:
    """Says what a request forces it to, by a template that knows tools; reads calls and reasoning, and is lenient.

    Fails where a request has `boom`.
    """
    template = ["--chat-template", str(TEMPLATE), "--trust-request-chat-template"]
    options = [*template, "--reasoning-parser", "qwen3", "--allow-extra-fields", "--vllm-metrics"]
    processors = ["support.forced:ForcesTokens", "support.served_faults:RaisesOnBoom"]
    options += ["--served-model-name", DEFAULT_MODEL, "--logits-processors", *processors]
    with ServerProcess(*options, model=str(light_checkpoint)) as running:
        yield running


@pytest.fixture(scope="session")
def named_server(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A tiny model of two names, 128 tokens and one port, greedy unless a request says otherwise.

    It takes templates of requests, and has an IO processor that a package brings.
    """
    site = tmp_path_factory.mktemp("site")
    install(site, "made_io", {"io_processor_plugins": {"lengths": "support.io_processors:lengths"}})
    env = {
        "PYTHONPATH": os.pathsep.join(map(str, (REPOSITORY, TESTS, site))),
        "FASTDEPLOY_LP_PLUGINS": "lengths",
    }
    options = ["--served-model-name", "first", "org/second", "--logits-processors", "LogitBiasLogitsProcessor"]
    options += ["--override-generation-config", '{"temperature": 0, "top_k": 5}', "--trust-request-chat-template"]
    options += ["--io-processor-plugin", "lengths", "--max-model-len", "128"]
    with ServerProcess(*options, model=str(tiny_checkpoint), own_metrics_port=False, env=env) as running:
        yield running


@pytest.fixture(scope="session")
def lasting_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A tiny model with four slots and room for answers that a test has to end; tests leave it idle."""
    with supervised_server(tmp_path_factory.mktemp("l")) as running:
        yield running


@pytest.fixture(scope="session")
def authors_server(tiny_checkpoint: Path) -> Iterator[ServerProcess]:
    """Processors that check requests in their own code, prepare values or act; only for requests with arguments."""
    options = ["--logits-processors-code-timeout", "60", "--max-num-seqs", "4"]
    declared = ["--logits-processors", *HELD, *PREPARING, *ACTING]
    with ServerProcess(*declared, *options, model=str(tiny_checkpoint)) as running:
        yield running


@pytest.fixture(scope="session")
def authors_llm(tiny_checkpoint: Path) -> Iterator[LLM]:
    """Processors that prepare requests, act or rewind, for requests with arguments."""
    declared = [*PREPARING, *ACTING, *REWINDING]
    with LLM(str(tiny_checkpoint), logits_processors=declared, max_num_seqs=4) as running:
        yield running


@pytest.fixture
def scripted(scripted_server: ServerProcess) -> Iterator[openai.Client]:
    """The real OpenAI client on `scripted_server`."""
    with openai.Client(base_url=f"{scripted_server.url}/v1", api_key="EMPTY_API_KEY", max_retries=0) as connected:
        yield connected


@pytest.fixture
def process_as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What `main` does to the process is undone."""
    for name in (LEVEL_VARIABLE, FORMAT_VARIABLE):
        monkeypatch.setenv(name, "")
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
