"""Tokenizers that PaddleNLP stores as tables of tokens and merges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders
from tokenizers.models import BPE

from fastdeploy_lp.checkpoint.errors import CheckpointError
from fastdeploy_lp.checkpoint.files import read_json_object
from fastdeploy_lp.checkpoint.pre_tokenizers import PRE_TOKENIZATIONS

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
