"""Files of a model in Hugging Face layout, and request limits from them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastdeploy_lp.checkpoint.config_field import positive_int
from fastdeploy_lp.checkpoint.errors import CheckpointError
from fastdeploy_lp.checkpoint.safetensors_file import num_parameters, require_whole

_INDEX = "model.safetensors.index.json"
# Longest file name in bytes; common file systems allow no longer ones.
MAX_NAME = 255
_LAYOUT = "give a directory with config.json, *.safetensors and tokenizer.json"


@dataclass(frozen=True)
class ModelFiles:
    """Locations of the parts of one model.

    directory: contains config.json, the weights and (for a model that takes text) tokenizer.json.
    source: origin of the directory: the GGUF file, or the directory itself.
    weights: the safetensors files, without duplicates.
    config: the parsed config.json.
    """

    directory: Path
    source: Path
    weights: tuple[Path, ...]
    config: dict[str, Any]


def read_model_files(directory: Path, source: Path | None = None, *, need_tokenizer: bool = True) -> ModelFiles:
    """Reads a directory in Hugging Face layout; the weights are not opened.

    Raises CheckpointError when config.json, the weights or (unless `need_tokenizer` is false) tokenizer.json are
    missing or unreadable.
    """
    config = read_json_object(directory / "config.json")
    weights = find_weights(directory)
    if need_tokenizer and not (directory / "tokenizer.json").is_file():
        raise CheckpointError(f"{directory}: no tokenizer.json in this directory; {_without_tokenizer(directory)}")
    return ModelFiles(directory, directory if source is None else source, weights, config)


def _without_tokenizer(directory: Path) -> str:
    if not (directory / "tokenizer.model").is_file():
        return _LAYOUT
    return (
        "the tokenizer.model there is SentencePiece's own format; transformers writes a tokenizer.json beside it: "
        "AutoTokenizer.from_pretrained(DIRECTORY).save_pretrained(DIRECTORY)"
    )


def find_weights(directory: Path) -> tuple[Path, ...]:
    """Returns the safetensors files of a directory; raises CheckpointError if none exist or the index is damaged."""
    index = directory / _INDEX
    single = directory / "model.safetensors"
    if index.is_file():
        return _indexed_weights(index)
    if single.is_file():
        return (single,)
    # Some publishers ship parts without an index.
    weights = tuple(sorted(path for path in directory.glob("*.safetensors") if path.is_file()))
    if weights:
        return weights
    if ggufs := sorted(directory.glob("*.gguf")):
        raise CheckpointError(f"{directory}: no *.safetensors in this directory; give the GGUF file itself: {ggufs[0]}")
    raise CheckpointError(f"{directory}: no *.safetensors in this directory; {_LAYOUT}")


def _indexed_weights(index: Path) -> tuple[Path, ...]:
    table = read_json_object(index).get("weight_map")
    if not isinstance(table, dict) or not table:
        raise CheckpointError(f"{index}: no weight_map; give a complete copy of the model")
    weights = []
    for name in sorted({str(value) for value in table.values()}):
        if len(name.encode(errors="surrogatepass")) > MAX_NAME:
            raise CheckpointError(f"{index}: a name of a file is longer than {MAX_NAME} bytes; give a complete copy")
        # An index that points outside its directory is damaged or hostile.
        if Path(name).name != name:
            raise CheckpointError(f"{index}: {name!r} is not a plain file name; give a complete copy of the model")
        if not (index.parent / name).is_file():
            raise CheckpointError(f"{index}: {name} is listed but missing; give a complete copy of the model")
        weights.append(index.parent / name)
    return tuple(weights)


def read_json_object(path: Path) -> dict[str, Any]:
    """Reads a JSON object; raises CheckpointError naming the file if it is missing or holds no JSON object."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"{path.parent}: no {path.name} in this directory; {_LAYOUT}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: cannot be read ({error}); give a complete copy of the model") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: not a JSON object; give a complete copy of the model")
    return value


GENERATION_CONFIG = "generation_config.json"


@dataclass(frozen=True)
class ModelLimits:
    """Context length in tokens, vocabulary size, and the token ids that end an output."""

    max_model_len: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]


def read_limits(files: ModelFiles) -> ModelLimits:
    """Returns the limits; raises CheckpointError naming a file with missing or damaged limits, or a truncated file."""
    require_whole(files.weights)
    try:
        vocab_size = positive_int(files.config, "vocab_size")
        _require_room(vocab_size, num_parameters(files.weights))
        max_model_len = _context(files.config)
    except CheckpointError as error:
        raise CheckpointError(f"{files.directory}: {error}") from None
    return ModelLimits(max_model_len, vocab_size, _eos_token_ids(files, vocab_size))


def _require_room(vocab_size: int, parameters: int) -> None:
    # Tables of vocabulary size are allocated before the weights are loaded, and config.json may hold any number.
    if vocab_size > parameters:
        raise CheckpointError(f"config.json: vocab_size is {vocab_size}; the weights are only {parameters} numbers")


def _context(config: dict[str, Any]) -> int:
    """Returns the context length; with YaRN, `max_position_embeddings` may be the original or the stretched length."""
    context = positive_int(config, "max_position_embeddings")
    scaling = config.get("rope_parameters") or config.get("rope_scaling")
    if not isinstance(scaling, dict) or (scaling.get("rope_type") or scaling.get("type")) != "yarn":
        return context
    factor, original = scaling.get("factor"), scaling.get("original_max_position_embeddings")
    if not isinstance(factor, (int, float)) or not isinstance(original, int):
        return context
    try:
        return max(context, int(original * factor))
    except (OverflowError, ValueError):  # NaN and infinity, which the model's rope rejects
        return context


def _eos_token_ids(files: ModelFiles, vocab_size: int) -> tuple[int, ...]:
    """Returns the stop tokens; `generation_config.json`, if present, often lists more of them than `config.json`."""
    path, found = files.directory / "config.json", files.config.get("eos_token_id")
    if (generation := files.directory / GENERATION_CONFIG).is_file():
        config = read_json_object(generation)
        if "eos_token_id" in config:
            path, found = generation, config["eos_token_id"]
    if found is None:
        return ()
    ids = found if isinstance(found, list) else [found]
    for token in ids:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocab_size:
            reason = f"eos_token_id is {token!r}, which is no token id; allowed are 0 to {vocab_size - 1}"
            raise CheckpointError(f"{path}: {reason}")
    return tuple(ids)
