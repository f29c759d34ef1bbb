"""What the tests of builtins over HTTP share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file
from support.server import ServerProcess
from support.tiny import write_tiny_checkpoint

from fastdeploy_lp.logits_processor import BUILTIN

SHARPNESS = 4


@pytest.fixture(scope="package")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model repeats itself. To a tiny model all tokens are about as likely: its logits are multiplied."""
    model: Path = write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"), "tiny-qwen3")
    weights = load_file(model / "model.safetensors")
    weights["model.norm.weight"] *= SHARPNESS
    save_file(weights, model / "model.safetensors")
    return model


@pytest.fixture(scope="package")
def server(checkpoint: Path) -> Iterator[ServerProcess]:
    """All builtins and two processors of other stages, and logprobs of what the sampler draws from."""
    options = ["--logprobs-mode", "processed_logprobs", "--max-num-seqs", "16"]
    processors = [*BUILTIN, "support.staged:Leaves", "support.staged:Draws1"]
    with ServerProcess("--logits-processors", *processors, *options, model=str(checkpoint)) as running:
        yield running
