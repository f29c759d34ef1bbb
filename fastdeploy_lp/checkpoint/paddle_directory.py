"""Finds PaddleNLP directories and converts them to Hugging Face's layout. PaddleNLP itself is not needed.

PaddleNLP's linear layers are [in_features, out_features], names begin with the family's name, older files are pickles.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401 - teaches numpy bfloat16
import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from tokenizers import AddedToken, Tokenizer, decoders
from tokenizers.models import BPE

from fastdeploy_lp.checkpoint.errors import CheckpointError
from fastdeploy_lp.checkpoint.files import find_weights, read_json_object
from fastdeploy_lp.checkpoint.pdparams import read_pdparams
from fastdeploy_lp.checkpoint.pre_tokenizers import PRE_TOKENIZATIONS
from fastdeploy_lp.checkpoint.safetensors_file import is_finite, read_format, require_whole, write_safetensors

# GGUF's pre-tokenizer name for each `model_type`.
SPLITTING = {"qwen2": "qwen2", "qwen3": "qwen2"}


def build_tokenizer(directory: Path, model_type: str) -> Tokenizer:
    """Builds the tokenizer of `vocab.json`, `merges.txt` and `tokenizer_config.json`.

    Raises CheckpointError if these are missing or damaged, and for families whose pre-tokenization is unknown.
    """
    vocabulary_path, merges_path = directory / "vocab.json", directory / "merges.txt"
    if model_type not in SPLITTING or not vocabulary_path.is_file() or not merges_path.is_file():
        raise CheckpointError(
            f"{directory}: no tokenizer.json in this directory; put the one of the same model there, or serve token "
            "ids with --skip-tokenizer-init"
        )
    rules = PRE_TOKENIZATIONS[SPLITTING[model_type]]
    try:
        merges = [_pair(line) for line in merges_path.read_text(encoding="utf-8").splitlines() if _is_merge(line)]
        model = BPE(read_json_object(vocabulary_path), merges, ignore_merges=rules.ignore_merges)
    except CheckpointError:
        raise
    except Exception as error:  # noqa: BLE001 - the library raises nothing more specific
        raise CheckpointError(f"{merges_path}: does not fit vocab.json: {error}") from None
    tokenizer = Tokenizer(model)
    if rules.normalize is not None:
        tokenizer.normalizer = rules.normalize()
    tokenizer.pre_tokenizer = rules.split()
    tokenizer.decoder = decoders.ByteLevel()
    _add_tokens(tokenizer, directory)
    return tokenizer


def _is_merge(line: str) -> bool:
    return bool(line.strip()) and not line.startswith("#version")


def _pair(line: str) -> tuple[str, str]:
    left, _, right = line.partition(" ")
    return left, right


def _add_tokens(tokenizer: Tokenizer, directory: Path) -> None:
    """Adds the tokens of `tokenizer_config.json` in the order of their ids; the resulting ids must match the file's."""
    path = directory / "tokenizer_config.json"
    table = read_json_object(path).get("added_tokens_decoder", {}) if path.is_file() else {}
    try:
        added = sorted((int(token), _token(entry)) for token, entry in table.items())
    except (AttributeError, KeyError, TypeError, ValueError):
        raise CheckpointError(f"{path}: added_tokens_decoder is no table of tokens by id") from None
    for token, (content, special) in added:
        tokenizer.add_tokens([AddedToken(content, special=special, normalized=False)])
        if tokenizer.token_to_id(content) != token:
            raise CheckpointError(f"{path}: token {token} does not follow the tokens of vocab.json")


def _token(entry: dict[str, Any]) -> tuple[str, bool]:
    return str(entry["content"]), bool(entry.get("special", False))


PDPARAMS = "model_state.pdparams"
VERSION_FIELD = b'"paddlenlp_version"'
EMBEDDING = "embed_tokens.weight"
KEPT_FILES = ("tokenizer_config.json", "generation_config.json", "chat_template.jinja")
# Options that change PaddleNLP's storage or computation in ways this converter does not support.
_UNKNOWN_OPTIONS = ("alibi", "fuse_attention_qkv", "fuse_attention_ffn")


@dataclass(frozen=True)
class PaddleDirectory:
    """A PaddleNLP directory. weights: one pickle, or safetensors files in Paddle's layout."""

    path: Path
    weights: tuple[Path, ...]

    @property
    def inputs(self) -> tuple[Path, ...]:
        """Returns the files that a conversion depends on."""
        others = [each for each in self.path.iterdir() if each.suffix in (".json", ".txt", ".jinja") and each.is_file()]
        return (*self.weights, *sorted(others))


def paddle_directory(path: Path) -> PaddleDirectory | None:
    """Returns the PaddleNLP directory, or None for any other. Safetensors files take precedence over a pickle.

    Raises CheckpointError for a pickle in several parts, and for an index of safetensors files that is damaged.
    """
    if not list(path.glob("*.safetensors")):
        return _pickled(path)
    weights = find_weights(path)
    framework = read_format(weights[0])
    # PaddleNLP marks its files "np", as other writers do, and stores its version in config.json.
    written = framework == "pd" or (framework != "pt" and _tells_version(path / "config.json"))
    return PaddleDirectory(path, weights) if written else None


def _pickled(path: Path) -> PaddleDirectory | None:
    if (path / PDPARAMS).is_file():
        return PaddleDirectory(path, (path / PDPARAMS,))
    if parts := sorted(path.glob("model_state-*.pdparams")):
        raise CheckpointError(f"{parts[0]}: pdparams in several parts are not read; save one file, or safetensors")
    return None


def _tells_version(config: Path) -> bool:
    # An unreadable config.json is reported later, when it is needed.
    return config.is_file() and VERSION_FIELD in config.read_bytes()


def convert_paddle(source: PaddleDirectory, directory: Path, *, need_tokenizer: bool) -> None:
    """Write config.json, model.safetensors (float32) and the tokenizer's files into `directory`.

    Raises CheckpointError for an unusable source, OSError if `directory` cannot be written.
    """
    config = _config(source.path)
    tokenizer = source.path / "tokenizer.json"
    if tokenizer.is_file():
        shutil.copy(tokenizer, directory / "tokenizer.json")
    elif need_tokenizer:
        built = build_tokenizer(source.path, str(config.get("model_type")))
        (directory / "tokenizer.json").write_text(built.to_str(pretty=True), encoding="utf-8")
    for name in KEPT_FILES:
        if (source.path / name).is_file():
            shutil.copy(source.path / name, directory / name)
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    tensors = _renamed(source, tied=bool(config.get("tie_word_embeddings")))
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    write_safetensors(directory / "model.safetensors", shapes, _floats(source, tensors))


def _config(path: Path) -> dict[str, Any]:
    config = read_json_object(path / "config.json")
    for option in _UNKNOWN_OPTIONS:
        if config.get(option):
            raise CheckpointError(f"{path / 'config.json'}: {option} is not supported for PaddleNLP's checkpoints")
    kind, factor = config.get("rope_scaling_type"), config.get("rope_scaling_factor", 1.0)
    if kind is not None and kind != "linear":
        raise CheckpointError(
            f"{path / 'config.json'}: rope_scaling_type {kind!r} is not supported; supported is linear"
        )
    if kind == "linear" and not config.get("rope_scaling"):
        config["rope_scaling"] = {"rope_type": "linear", "factor": factor}
    return config


def _renamed(source: PaddleDirectory, *, tied: bool) -> dict[str, NDArray[Any]]:
    """Returns the tensors under Hugging Face's names and in its layout."""
    stored = _stored(source)
    prefixes = [name.removesuffix(EMBEDDING) for name in stored if name.endswith(EMBEDDING)]
    if len(prefixes) != 1:
        raise CheckpointError(f"{source.weights[0]}: {len(prefixes)} tensors end with {EMBEDDING}; one is needed")
    renamed = {}
    for name, tensor in stored.items():
        # A tied head duplicates the embedding.
        if tied and name == "lm_head.weight":
            continue
        target = re.sub(f"^{re.escape(prefixes[0])}", "model.", name) if prefixes[0] else f"model.{name}"
        linear = tensor.ndim == 2 and not name.endswith(EMBEDDING)
        renamed["lm_head.weight" if name == "lm_head.weight" else target] = tensor.T if linear else tensor
    return renamed


def _stored(source: PaddleDirectory) -> dict[str, NDArray[Any]]:
    if source.weights[0].suffix == ".pdparams":
        return read_pdparams(source.weights[0])
    require_whole(source.weights)
    stored: dict[str, NDArray[Any]] = {}
    for path in source.weights:
        with safe_open(path, framework="numpy") as file:
            stored |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - the file is no dict
    return stored


def _floats(source: PaddleDirectory, tensors: dict[str, NDArray[Any]]) -> Iterator[NDArray[np.float32]]:
    for name, tensor in tensors.items():
        with np.errstate(over="ignore"):
            array = np.ascontiguousarray(tensor, np.float32)
        if not is_finite(array):
            raise CheckpointError(f"{source.path}: tensor {name} holds NaN or infinity")
        yield array
