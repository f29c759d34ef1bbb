"""What PaddleNLP wrote computes what the reference computes, without PaddleNLP."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from support.golden import Model, Run, assert_close, cases
from support.paddle_checkpoint import paddle_tensors, write_paddle_safetensors, write_pdparams
from support.tiny import GOLDEN, write_tiny_checkpoint
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel

from fastdeploy_lp.checkpoint import CheckpointError, resolve_model
from fastdeploy_lp.checkpoint.files import ModelFiles
from fastdeploy_lp.model_executor.ops import compiled_ops

FAMILIES = {"tiny-llama": "llama.", "tiny-qwen2": "qwen2.", "tiny-qwen3": "qwen3.", "tiny-ernie45": "ernie."}


@pytest.fixture(scope="session")
def operators() -> None:
    """Compiled, if they have to be, in the usual cache and not in one that a test throws away."""
    compiled_ops()


def resolved(folder: Path, *, need_tokenizer: bool = False) -> ModelFiles:
    return resolve_model(str(folder), show_progress=False, need_tokenizer=need_tokenizer)


@pytest.mark.parametrize("write", [write_pdparams, write_paddle_safetensors])
@pytest.mark.parametrize("name", FAMILIES)
def test_logits_are_those_of_the_reference(
    name: str, write: Callable[..., Path], operators: None, tmp_path: Path, cache: Path
) -> None:
    files = resolved(write(tmp_path, name, FAMILIES[name]))
    assert files.directory.is_relative_to(cache)
    for case in cases(name):
        (logits,) = Model(str(files.directory)).logits(Run(case.prompt, seat=0))
        assert_close(logits, case.logits)


@pytest.mark.parametrize("name", ["paddlenlp-llama", "paddlenlp-qwen2"])
def test_what_paddlenlp_itself_wrote_computes_what_it_computed(
    name: str, operators: None, tmp_path: Path, cache: Path
) -> None:
    files = resolved(GOLDEN / name)
    reference = np.load(GOLDEN / name / "reference.npz")
    (logits,) = Model(str(files.directory)).logits(Run(reference["ids"].tolist(), seat=0))
    assert_close(logits, reference["logits"])


def test_safetensors_are_paddles_if_they_or_config_json_say_so(tmp_path: Path, cache: Path) -> None:
    for framework, converted in (("pd", True), ("np", True), ("pt", False)):
        folder = tmp_path / framework
        folder.mkdir()
        files = resolved(write_paddle_safetensors(folder, "tiny-llama", "llama.", framework=framework))
        assert (files.directory != folder) is converted


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_every_precision_and_protocol_is_read_exactly(dtype: str, protocol: int, tmp_path: Path, cache: Path) -> None:
    folder = write_pdparams(tmp_path, "tiny-llama", "llama.", dtype=dtype, protocol=protocol)
    weights = load_file(resolved(folder).weights[0])
    expected = paddle_tensors("tiny-llama", "llama.")["lm_head.weight"].T
    if dtype == "bfloat16":
        expected = expected.astype(np.dtype("bfloat16"))
    np.testing.assert_array_equal(weights["lm_head.weight"], expected.astype(dtype).astype(np.float32))


def test_it_is_converted_once_and_again_when_it_changes(tmp_path: Path, cache: Path) -> None:
    folder = write_pdparams(tmp_path, "tiny-qwen2", "qwen2.")
    first = resolved(folder).directory
    assert resolved(folder).directory == first
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 77}))
    changed = resolved(folder)
    assert changed.directory != first
    assert changed.config["max_position_embeddings"] == 77


def test_a_directory_of_other_safetensors_is_used_as_it_is(tmp_path: Path, cache: Path) -> None:
    write_tiny_checkpoint(tmp_path)
    assert resolved(tmp_path).directory == tmp_path
    assert not cache.exists()


# Tokenizers


def test_its_tokenizer_json_is_used(tmp_path: Path, cache: Path) -> None:
    write_tiny_checkpoint(tmp_path, "tiny-qwen2")
    (tmp_path / "model.safetensors").unlink()
    files = resolved(write_pdparams(tmp_path, "tiny-qwen2", "qwen2."), need_tokenizer=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (files.directory / name).read_text() == (tmp_path / name).read_text()


def write_tables(folder: Path, first_added: int) -> None:
    vocabulary = [*sorted(ByteLevel.alphabet()), "he", "hel"]
    (folder / "vocab.json").write_text(json.dumps({token: index for index, token in enumerate(vocabulary)}))
    (folder / "merges.txt").write_text("#version: 0.2\nh e\nhe l\n")
    added = {str(first_added + i): {"content": name, "special": True} for i, name in enumerate(["<|end|>", "<|im|>"])}
    (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))


def test_tables_of_tokens_and_merges_become_a_tokenizer(tmp_path: Path, cache: Path) -> None:
    write_tables(write_pdparams(tmp_path, "tiny-qwen2", "qwen2."), first_added=258)
    files = resolved(tmp_path, need_tokenizer=True)
    tokenizer = Tokenizer.from_file(str(files.directory / "tokenizer.json"))
    encoded = tokenizer.encode("hello 12<|im|>")
    assert encoded.tokens == ["hel", "l", "o", "Ġ", "1", "2", "<|im|>"]
    assert encoded.ids[-1] == 259
    assert tokenizer.decode(encoded.ids, skip_special_tokens=False) == "hello 12<|im|>"


def test_added_tokens_have_to_keep_their_ids(tmp_path: Path, cache: Path) -> None:
    write_tables(write_pdparams(tmp_path, "tiny-qwen2", "qwen2."), first_added=300)
    with pytest.raises(CheckpointError, match="token 300 does not follow"):
        resolved(tmp_path, need_tokenizer=True)


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-qwen2"])
def test_without_a_tokenizer_that_can_be_read_it_says_what_to_do(name: str, tmp_path: Path, cache: Path) -> None:
    folder = write_pdparams(tmp_path, name, FAMILIES[name])
    with pytest.raises(CheckpointError, match=r"no tokenizer\.json .*--skip-tokenizer-init"):
        resolved(folder, need_tokenizer=True)


# What cannot be used


def change_config(**fields: Any) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | fields))

    return change


def two_embeddings(folder: Path) -> None:
    (folder / "model_state.pdparams").unlink()
    tensors = paddle_tensors("tiny-llama", "llama.")
    tensors["bert.embed_tokens.weight"] = tensors["llama.embed_tokens.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pd"})


def not_a_number(folder: Path) -> None:
    (folder / "model_state.pdparams").unlink()
    tensors = paddle_tensors("tiny-llama", "llama.")
    tensors["llama.norm.weight"][3] = np.nan
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pd"})


def in_parts(folder: Path) -> None:
    (folder / "model_state.pdparams").rename(folder / "model_state-00001-of-00002.pdparams")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (change_config(fuse_attention_qkv=True), "config.json: fuse_attention_qkv is not supported"),
        (change_config(rope_scaling_type="ntk"), "config.json: rope_scaling_type 'ntk' is not supported"),
        (two_embeddings, "2 tensors end with embed_tokens.weight"),
        (not_a_number, "tensor model.norm.weight holds NaN or infinity"),
        (in_parts, "model_state-00001-of-00002.pdparams: pdparams in several parts are not read"),
    ],
)
def test_what_cannot_be_used_says_why(
    change: Callable[[Path], object], reason: str, tmp_path: Path, cache: Path
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    change(write_pdparams(folder, "tiny-llama", "llama."))
    with pytest.raises(CheckpointError) as caught:
        resolved(folder)
    assert reason in str(caught.value)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)
