"""Request limits from a model's files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastdeploy_lp.checkpoint.config_field import positive_int
from fastdeploy_lp.checkpoint.errors import CheckpointError
from fastdeploy_lp.checkpoint.files import ModelFiles, read_json_object
from fastdeploy_lp.checkpoint.safetensors_file import num_parameters, require_whole

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
