"""A model directory in Hugging Face layout."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastdeploy_lp.checkpoint.errors import CheckpointError

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
        raise CheckpointError(f"{directory}: no tokenizer.json in this directory; {_LAYOUT}")
    return ModelFiles(directory, directory if source is None else source, weights, config)


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
