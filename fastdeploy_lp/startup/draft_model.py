"""The second model of the method `draft_model`: its files, and whether it fits the model that is served."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fastdeploy_lp.checkpoint import CheckpointError, ModelFiles, read_limits, resolve_model
from fastdeploy_lp.config import FDConfig, ModelConfig
from fastdeploy_lp.config.speculation import DRAFT_MODEL, Speculation
from fastdeploy_lp.model_tokenizer import ModelTokenizer, TokenizerFilesError
from fastdeploy_lp.platforms import current_platform


@dataclass(frozen=True)
class DraftModel:
    """Files of the model, and its part of the configuration."""

    files: ModelFiles
    config: ModelConfig


def find_draft_model(settled: FDConfig, *, show_progress: bool = True) -> DraftModel | None:
    """Returns the draft model of the settings; None without one.

    Raises ValueError, which begins with the option, for a model that cannot be used or has another vocabulary, and for
    options that do not fit it.
    """
    settings = settled.scheduler_config.speculation
    if settings is None or settings.model is None:
        return None
    try:
        return _found(settled, settings, settings.model, show_progress=show_progress)
    except CheckpointError as error:
        raise CheckpointError(f"speculative_config: model: {error}") from error
    except ValueError as error:
        raise ValueError(f"speculative_config: {error}") from error


def _found(settled: FDConfig, settings: Speculation, model: str, *, show_progress: bool) -> DraftModel:
    ranks = settled.parallel_config.tensor_parallel_size
    if ranks > 1:
        raise ValueError(
            f"method: {DRAFT_MODEL} is not allowed with tensor_parallel_size {ranks}; allowed are the other methods, "
            "and tensor_parallel_size 1"
        )
    served = settled.model_config
    files = resolve_model(model, show_progress=show_progress, need_tokenizer=not served.skip_tokenizer_init)
    limits = read_limits(files)
    if limits.vocab_size != served.vocab_size:
        raise ValueError(
            f"model: {model} has a vocabulary of {limits.vocab_size} tokens, and {served.model} one of "
            f"{served.vocab_size}; a draft model must have the vocabulary of the model that is served"
        )
    if not served.skip_tokenizer_init:
        _require_same_tokens(model, files, served)
    config = replace(
        served,
        model=model,
        directory=str(files.directory),
        max_model_len=min(served.max_model_len, limits.max_model_len),
        eos_token_ids=limits.eos_token_ids,
        # A quantization rounds weights itself, and that of the served model is not the draft model's.
        dtype=current_platform().model_dtype if settings.quantization else served.dtype,
        quantization=settings.quantization,
        hf_config=files.config,
    )
    checked = current_platform().check_and_update_config(replace(settled, model_config=config))
    return DraftModel(files, checked.model_config)


def _require_same_tokens(model: str, files: ModelFiles, served: ModelConfig) -> None:
    """Raises ValueError naming a token that has another id in one of the two, or is special in one of them only."""
    try:
        own, others = _tokens(str(files.directory)), _tokens(served.directory)
    except TokenizerFilesError as error:
        raise ValueError(f"model: {error}") from error
    different = own.items() ^ others.items()
    if different:
        number, special, token = min((number, special, token) for token, (number, special) in different)
        what = "special token" if special else "token"
        raise ValueError(
            f"model: the {what} {token!r} with the id {number} is not the same in {model} and {served.model}; a draft "
            "model must have the vocabulary of the model that is served"
        )


def _tokens(directory: str) -> dict[str, tuple[int, bool]]:
    """Returns id and specialness of every token."""
    tokenizer = ModelTokenizer(directory)
    special = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    return {token: (number, number in special) for token, number in tokenizer.get_vocab().items()}
