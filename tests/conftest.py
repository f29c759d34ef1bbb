"""Fixtures that several test folders share."""

from __future__ import annotations

import gc
import importlib
import inspect
import json
import os
import signal
import sys
import warnings
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from hypothesis import HealthCheck, settings
from support.light import write_light_checkpoint
from support.server import DEFAULT_MODEL, PLUGINS, TESTS, ZOO, ServerProcess

from fastdeploy_lp.platforms import current_platform
from fastdeploy_lp.platforms.cpu import THREAD_VARIABLES

# The plugin packages that are installed for tests load only where a test asks for them.
os.environ["FASTDEPLOY_LP_PLUGINS"] = ""
# One thread, as in servers of tests. Set before xdist starts its workers, which thus begin with these variables.
os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1"))
# Paddle reads these once, when it is imported; it warns about a missing compiler cache while it is at it.
os.environ.update(current_platform().worker_environment())
sys.path += [str(PLUGINS), str(ZOO)]
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    importlib.import_module("paddle")

# Tests connect to 127.0.0.1. Each new client of httpx would first read every authority that certifi knows, for 20 ms.
os.environ["SSL_CERT_FILE"] = str(TESTS / "data" / "tls" / "certificate.pem")

# How long an example takes is the machine's affair, and no test's.
settings.register_profile("random", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# The same examples in every run: luck decides no test.
settings.register_profile("fixed", settings.get_profile("random"), derandomize=True, database=None)
settings.load_profile("fixed")

# By default httpx gives up after 5 seconds, which any answer may take on a busy machine.
PATIENCE: httpx.Timeout = inspect.signature(httpx.request).parameters["timeout"].default
PATIENCE.connect = PATIENCE.read = PATIENCE.write = PATIENCE.pool = 600.0

# Where a shell starts the tests in the background, SIGINT is ignored, here and in every process that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

DATA = TESTS / "data"
# Those of the servers that many modules share.
PROCESSORS = ["LogitBiasLogitsProcessor", "support.processors:YourLogitsProcessor"]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Imports the tests without garbage collections, and excludes what was imported from later ones.

    Nearly all of it stays: collections take two seconds of the import, and later half a second each.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


def pytest_unconfigure() -> None:
    """Frees the engines of WebAssembly modules; at the interpreter's end wasmtime no longer can, and prints so."""
    module = sys.modules.get("fastdeploy_lp.logits_processor.wasm.engine")
    if module is not None:
        module.wasm_engine.cache_clear()
        gc.collect()


@pytest.fixture(scope="session")
def golden_cases() -> list[dict[str, Any]]:
    """Chats with SmolLM2-135M-Instruct and what the reference implementation answers greedily in float32."""
    cases: list[dict[str, Any]] = json.loads((DATA / "golden" / "smollm2.json").read_text())["cases"]
    return cases


@pytest.fixture(scope="session")
def server() -> Iterator[ServerProcess]:
    """The default model with LogitBias and the documents' own processor, for tests that leave it as it was."""
    with ServerProcess("--log-requests", "--logits-processors", *PROCESSORS) as running:
        yield running


@pytest.fixture
def client(server: ServerProcess) -> Iterator[openai.Client]:
    """The real OpenAI client on `server`."""
    with openai.Client(base_url=f"{server.url}/v1", api_key="EMPTY_API_KEY", max_retries=0) as connected:
        yield connected


@pytest.fixture(scope="session")
def light_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model that writes the default model's tokens, fast and without sense."""
    return write_light_checkpoint(tmp_path_factory.mktemp("light"), DEFAULT_MODEL)


@pytest.fixture(scope="session")
def light_server(light_checkpoint: Path) -> Iterator[ServerProcess]:
    """As `server`, and under its model's name, for tests in which an answer needs no sense."""
    options = ["--log-requests", "--served-model-name", DEFAULT_MODEL, "--logits-processors", *PROCESSORS]
    with ServerProcess(*options, model=str(light_checkpoint)) as running:
        yield running


@pytest.fixture
def light_client(light_server: ServerProcess) -> Iterator[openai.Client]:
    """The real OpenAI client on `light_server`."""
    with openai.Client(base_url=f"{light_server.url}/v1", api_key="EMPTY_API_KEY", max_retries=0) as connected:
        yield connected
