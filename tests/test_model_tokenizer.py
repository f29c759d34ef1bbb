"""The tokenizer for processors answers as transformers' does, without transformers."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.tiny import tiny_fd_config, write_tiny_checkpoint
from tokenizers import Tokenizer, processors
from transformers import PreTrainedTokenizerFast

from fastdeploy_lp.model_tokenizer import ModelTokenizer, TokenizerFilesError, model_tokenizer

TEXT = "the quick </s> Brown fox: 12\n漢 jumps"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer that puts tokens around a prompt, with bounds that a training run has left."""
    folder = write_tiny_checkpoint(tmp_path_factory.mktemp("tokenizer"))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    tokenizer.add_special_tokens(["<tool>"])
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=50)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "bos_token": "<s>",
        "eos_token": {"content": "</s>", "lstrip": False, "__type": "AddedToken"},
        "pad_token": "<pad>",
        "unk_token": "<s>",
        "additional_special_tokens": ["<tool>"],
        "add_prefix_space": False,
        "model_max_length": 4096,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def both(directory: Path) -> tuple[ModelTokenizer, Any]:
    return ModelTokenizer(str(directory)), PreTrainedTokenizerFast.from_pretrained(directory)


CALLS: dict[str, Callable[[Any], Any]] = {
    "length": len,
    "vocab_size": lambda t: t.vocab_size,
    "get_vocab": lambda t: t.get_vocab(),
    "added": lambda t: t.get_added_vocab(),
    "encode": lambda t: t.encode(TEXT),
    "encode_bare": lambda t: t.encode(TEXT, add_special_tokens=False),
    "encode_pair": lambda t: t.encode("the", "fox"),
    "encode_cut": lambda t: t.encode(TEXT, truncation=True, max_length=5),
    "encode_tensor": lambda t: t.encode(TEXT, return_tensors="pt").tolist(),
    "decode": lambda t: t.decode(t.encode(TEXT)),
    "decode_plain": lambda t: t.decode(t.encode(TEXT), skip_special_tokens=True),
    "decode_one": lambda t: [t.decode(token) for token in range(len(t))],
    "decode_one_special": lambda t: [t.decode(2, skip_special_tokens=skip) for skip in (True, False, True)],
    "decode_tensor": lambda t: [
        t.decode(torch.tensor([300, 301])),
        t.decode(torch.tensor(300)),
        t.decode(np.arange(9)),
    ],
    "batch_decode": lambda t: t.batch_decode([[300, 301], [5]]),
    "decode_lists": lambda t: t.decode([[300, 301], [5]]),
    "decode_none": lambda t: t.decode([]),
    "tokenize": lambda t: t.tokenize(TEXT),
    "call": lambda t: {key: t(TEXT)[key] for key in ("input_ids", "attention_mask")},
    "call_attribute": lambda t: t(TEXT, add_special_tokens=False).input_ids,
    "call_texts": lambda t: t(["the", "fox jumps"])["input_ids"],
    "call_padded": lambda t: [each.tolist() for each in padded(t)],
    "to_ids": lambda t: [t.convert_tokens_to_ids("</s>"), t.convert_tokens_to_ids(["a", "<tool>", "nowhere"])],
    "to_tokens": lambda t: [t.convert_ids_to_tokens(5), t.convert_ids_to_tokens([1, 2, 300])],
    "to_tokens_plain": lambda t: t.convert_ids_to_tokens([1, 2, 300], skip_special_tokens=True),
    "to_string": lambda t: t.convert_tokens_to_string(["the", "Ġfox"]),
    "special": lambda t: [getattr(t, f"{name}_token") for name in ("bos", "eos", "pad", "unk", "sep", "mask", "cls")],
    "special_ids": lambda t: [getattr(t, f"{name}_token_id") for name in ("bos", "eos", "pad", "unk", "sep", "mask")],
    "all_special": lambda t: (set(t.all_special_tokens), set(t.all_special_ids)),
    "config": lambda t: (getattr(t, "add_prefix_space", None), t.model_max_length, t.is_fast, t.padding_side),
    "absent": lambda t: getattr(t, "of_no_tokenizer", "absent"),
}


def padded(tokenizer: Any) -> list[Any]:
    encoded = tokenizer(["the", "fox jumps over it"], padding=True, return_tensors="pt")
    return [encoded.input_ids, encoded["attention_mask"]]


@pytest.mark.parametrize("call", CALLS)
def test_answers_are_those_of_transformers(call: str, both: tuple[ModelTokenizer, Any]) -> None:
    ours, theirs = both
    assert CALLS[call](ours) == CALLS[call](theirs)


def test_methods_of_the_tokenizers_package_are_there(both: tuple[ModelTokenizer, Any]) -> None:
    ours, theirs = both
    assert ours.token_to_id("</s>") == theirs.backend_tokenizer.token_to_id("</s>") == 2
    assert ours.id_to_token(2) == "</s>"
    assert ours.backend_tokenizer is ours._tokenizer


def test_it_can_be_copied_and_pickled(both: tuple[ModelTokenizer, Any]) -> None:
    for made in (copy.deepcopy(both[0]), pickle.loads(pickle.dumps(both[0]))):
        assert made.encode(TEXT) == both[0].encode(TEXT)


def test_the_models_end_of_sequence_counts_where_no_file_names_one(tmp_path: Path) -> None:
    write_tiny_checkpoint(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    assert (ModelTokenizer(str(tmp_path), (5, 2)).eos_token_id, ModelTokenizer(str(tmp_path)).eos_token_id) == (5, None)
    assert ModelTokenizer(str(tmp_path), (2,)).eos_token == "</s>"


def test_a_model_without_a_tokenizer_is_told_when_it_is_used(tmp_path: Path) -> None:
    for directory in ("", str(tmp_path)):
        tokenizer = ModelTokenizer(directory)
        with pytest.raises(TokenizerFilesError, match="no tokenizer"):
            tokenizer.encode("text")
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(TokenizerFilesError, match="cannot be read"):
        len(ModelTokenizer(str(tmp_path)))


def test_a_configuration_has_one_tokenizer_a_process() -> None:
    config = tiny_fd_config(eos_token_ids=(2,))
    assert config.tokenizer is model_tokenizer(config.model_config.directory, (2,))
