"""Fixtures for tests of the entry points."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.distributions import import_folder, install
from support.pooling import IO_PROCESSORS, POOLED_CONTEXT, WHOLE_CONTEXT, PoolingEngine
from support.server import ServerProcess
from support.tiny import write_tiny_checkpoint

from fastdeploy_lp import LLM

STRICT_SERVER_CONTEXT = 160


@pytest.fixture(scope="session")
def strict_server(light_checkpoint: Path) -> Iterator[ServerProcess]:
    """As `light_server`, with a small context, metrics on the API's port, and processors whose arguments are known."""
    processors = ["--logits-processors", "LogitBiasLogitsProcessor"]
    options = ["--served-model-name", "smol", "--max-model-len", str(STRICT_SERVER_CONTEXT)]
    with ServerProcess(*processors, *options, model=str(light_checkpoint), own_metrics_port=False) as running:
        yield running


@pytest.fixture(scope="session")
def pooling_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny model with room for prompts that keep a worker busy."""
    return str(write_tiny_checkpoint(tmp_path_factory.mktemp("pooling"), context=WHOLE_CONTEXT))


@pytest.fixture(scope="session")
def io_processors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the tests' IO processors are installed."""
    site = tmp_path_factory.mktemp("site")
    install(site, "made_io", {"io_processor_plugins": IO_PROCESSORS})
    return site


@pytest.fixture(scope="package")
def pooling_llm(pooling_model: str, io_processors: Path) -> Iterator[LLM]:
    """One slot, with the processor that answers with lengths; nobody may wait in the worker."""
    options = {"max_model_len": POOLED_CONTEXT, "max_num_seqs": 1, "max_waiting_requests": 0}
    with import_folder(io_processors, only=",".join(IO_PROCESSORS)):
        made = LLM(pooling_model, io_processor_plugin="lengths", pooling_type="mean", **options)
    with made:
        yield made


@pytest.fixture(scope="package")
def pooling_engine(pooling_model: str, io_processors: Path) -> Iterator[PoolingEngine]:
    """One slot, with the processor that answers with the first output; eight may wait."""
    with import_folder(io_processors, only=",".join(IO_PROCESSORS)):
        made = PoolingEngine(pooling_model)
    yield made
    made.close()
