"""The draft model of the options: found, held against the served model, and counted in the KV cache's size."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.tiny import GOLDEN, write_tiny_checkpoint

from fastdeploy_lp.checkpoint import num_parameters
from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.platforms import CpuPlatform
from fastdeploy_lp.startup.cache_size import kv_bytes_per_token
from fastdeploy_lp.startup.engine_args import EngineArgs
from fastdeploy_lp.worker.kv_cache_spec import KVCacheSpec

BLOCK = 16


@pytest.fixture
def served(tmp_path: Path) -> Path:
    (tmp_path / "served").mkdir()
    return write_tiny_checkpoint(tmp_path / "served")


@pytest.fixture
def draft(tmp_path: Path) -> Path:
    (tmp_path / "draft").mkdir()
    return write_tiny_checkpoint(tmp_path / "draft", "tiny-qwen2", context=48)


def settled(served: Path, draft: Path, settings: dict[str, Any] | None = None, **options: Any) -> FDConfig:
    given = {"method": "draft_model", "model": str(draft), **(settings or {})}
    args = EngineArgs(model=str(served), speculative_config=given, block_size=BLOCK, **options)
    return args.create_fd_config(show_progress=False)


@pytest.mark.parametrize("quantization", [None, "w8a16"])
def test_the_model_has_its_own_quantization_and_context(served: Path, draft: Path, quantization: str | None) -> None:
    config = settled(served, draft, {"quantization": quantization}, quantization="w8a8", max_model_len=64)
    found = config.draft_model_config
    assert found is not None
    assert (found.directory, found.quantization, found.max_model_len) == (str(draft), quantization, 48)
    assert found.hf_config["model_type"] == "qwen2"
    assert (config.model_config.quantization, config.model_config.max_model_len) == ("w8a8", 64)


def test_weights_rounded_by_their_quantization_are_not_rounded_again(served: Path, draft: Path) -> None:
    config = settled(served, draft, {"quantization": "w8a8"}, dtype="bfloat16")
    assert config.draft_model_config is not None
    assert (config.model_config.dtype, config.draft_model_config.dtype) == ("bfloat16", "float32")


def test_weights_and_blocks_of_both_models_share_the_memory(
    served: Path, draft: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = (served, draft)
    weights = sum(num_parameters((folder / "model.safetensors",)) for folder in folders) * 4
    of_token = sum(
        kv_bytes_per_token(json.loads((folder / "config.json").read_text()), "float32") for folder in folders
    )
    options = {"max_model_len": 64, "max_num_seqs": 4, "gpu_memory_utilization": 1.0}
    monkeypatch.setattr(CpuPlatform, "free_memory", lambda _: weights + 9 * BLOCK * of_token)
    config = settled(served, draft, **options)
    assert config.cache_config.num_blocks == 9
    assert KVCacheSpec.of(config).bytes_per_token == of_token


def with_vocabulary(folder: Path, size: int) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": size}))


def with_other_tokens(folder: Path, old: str, new: str) -> None:
    path = folder / "tokenizer.json"
    path.write_text(path.read_text().replace(json.dumps(old), json.dumps(new)))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: with_vocabulary(folder, 511), r"model: .*draft has a vocabulary of 511 tokens, and .* of 512"),
        (
            lambda folder: with_other_tokens(folder, "</s>", "<end>"),
            r"model: the special token '</s>' with the id 2 is",
        ),
        (lambda folder: (folder / "tokenizer.json").unlink(), r"model: .*: no tokenizer\.json in this directory"),
        (lambda folder: (folder / "config.json").unlink(), r"model: .*: no config\.json in this directory"),
    ],
    ids=["size", "tokens", "no tokenizer", "no config"],
)
def test_a_model_that_does_not_fit_is_refused(served: Path, draft: Path, spoil: Any, message: str) -> None:
    spoil(draft)
    with pytest.raises(ValueError, match=f"^speculative_config: {message}"):
        settled(served, draft)


def test_ranks_cannot_share_it(served: Path, draft: Path) -> None:
    with pytest.raises(ValueError, match="speculative_config: method: draft_model is not allowed with tensor_parallel"):
        settled(served, draft, tensor_parallel_size=2)


def test_without_a_tokenizer_the_size_of_the_vocabulary_counts() -> None:
    config = settled(GOLDEN / "tiny-llama", GOLDEN / "tiny-qwen3", skip_tokenizer_init=True)
    assert config.draft_model_config is not None
    assert settled(GOLDEN / "tiny-llama", GOLDEN / "tiny-llama", skip_tokenizer_init=True).cache_config.num_blocks > 1
