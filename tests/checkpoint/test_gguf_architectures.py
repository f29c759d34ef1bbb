"""Golden models of every architecture, written as GGUF files: converted, they compute what the reference computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.gguf_model import write_golden_gguf
from support.golden import Model, Run, assert_close, cases
from tokenizers import Tokenizer

from fastdeploy_lp.checkpoint import CheckpointError, resolve_model
from fastdeploy_lp.checkpoint.gguf_architecture import ARCHITECTURES
from fastdeploy_lp.model_executor.ops import compiled_ops

# llama3's factors are a tensor of their own in a GGUF, for the original context of the published models alone.
GOLDEN_OF = {
    "ernie4_5": "tiny-ernie45",
    "llama": "tiny-llama",
    "phi3": "tiny-phi3",
    "qwen2": "tiny-qwen2",
    "qwen3": "tiny-qwen3",
}


def test_every_architecture_is_tested() -> None:
    assert set(GOLDEN_OF) == set(ARCHITECTURES)


@pytest.fixture(scope="session")
def operators() -> None:
    """Compiled, if they have to be, in the usual cache and not in one that a test throws away."""
    compiled_ops()


@pytest.mark.parametrize("architecture", GOLDEN_OF)
def test_logits_are_those_of_the_reference(architecture: str, operators: None, tmp_path: Path, cache: Path) -> None:
    name = GOLDEN_OF[architecture]
    path = write_golden_gguf(tmp_path / "tiny.gguf", name, architecture=architecture)
    files = resolve_model(str(path), show_progress=False)
    for case in cases(name):
        (logits,) = Model(str(files.directory)).logits(Run(case.prompt, seat=0))
        assert_close(logits, case.logits)
    assert Tokenizer.from_file(str(files.directory / "tokenizer.json")).encode("he").tokens == ["he"]


YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 32}


def test_yarn_scaling_is_kept(tmp_path: Path, cache: Path) -> None:
    more = {**YARN, "rope.scaling.yarn_beta_fast": 16.0}
    assert rope_scaling(tmp_path, more) == {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 32,
        "beta_fast": 16.0,
    }


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        (
            {**YARN, "rope.scaling.original_context_length": None},
            "no metadata qwen2.rope.scaling.original_context_length",
        ),
        ({**YARN, "rope.scaling.attn_factor": 0.5}, "qwen2.rope.scaling.attn_factor is not supported"),
        ({"rope.scaling.type": "longrope"}, "rope scaling 'longrope' is not supported"),
        ({"attention.value_length": 16}, "heads of values and of keys have different sizes"),
    ],
)
def test_what_cannot_be_computed_is_refused(tmp_path: Path, cache: Path, metadata: dict[str, Any], reason: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        rope_scaling(tmp_path, metadata)
    assert reason in str(caught.value)


def rope_scaling(tmp_path: Path, metadata: dict[str, Any]) -> Any:
    named = {f"qwen2.{name}": value for name, value in metadata.items()}
    path = write_golden_gguf(tmp_path / "tiny.gguf", "tiny-qwen2", architecture="qwen2", metadata=named)
    return resolve_model(str(path), show_progress=False).config["rope_scaling"]
