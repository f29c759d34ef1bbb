"""Checks of a request's arguments: the validator of a served model, and the limit of what sequences carry."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.engine.errors import InvalidRequestError
from fastdeploy_lp.engine.message_parser import MessageParsers
from fastdeploy_lp.engine.tokenizer import NoTokenizer, Tokenizer
from fastdeploy_lp.logits_processor import DeclaredProcessor, RequestArgsValidator
from fastdeploy_lp.request.limits import MAX_CARRIED_VALUES
from fastdeploy_lp.request.sampling_params import SamplingParams


def served_tokenizer(fd_config: FDConfig) -> Tokenizer:
    """Returns the model's tokenizer, or a `NoTokenizer`."""
    if fd_config.model_config.skip_tokenizer_init:
        return NoTokenizer()
    return Tokenizer(Path(fd_config.model_config.directory), chat_template=fd_config.chat_config.chat_template)


def args_validator(
    fd_config: FDConfig, declared: Sequence[DeclaredProcessor], tokenizer: Tokenizer
) -> RequestArgsValidator:
    """Returns a validator for the declared chain; `tokenizer` encodes phrases if it handles text."""
    vocab_size = fd_config.model_config.vocab_size
    encode = partial(_phrase, tokenizer, vocab_size) if tokenizer.handles_text else None
    shadow = fd_config.structured_outputs_config.shadow
    parts = MessageParsers(fd_config.chat_config, tokenizer.chat_template_source).parts
    return RequestArgsValidator(declared, vocab_size, encode, shadow=shadow, tokenizer=fd_config.tokenizer, parts=parts)


def _phrase(tokenizer: Tokenizer, vocab_size: int, text: str) -> list[int]:
    """Returns the token ids of a phrase; raises ValueError for a token outside the model's vocabulary."""
    ids = tokenizer.encode_phrase(text)
    if max(ids, default=0) >= vocab_size:
        raise ValueError(f"{text!r} has the token {max(ids)}; this model's are 0 to {vocab_size - 1}")
    return ids


# A word is at least one list of tokens.
LISTS = ("bad_words", "bad_words_token_ids", "allowed_token_ids", "stop_token_ids", "stop", "prediction")
ARGUMENTS = ("logit_bias", "logits_processors_args", "extra_args", "logits_processors")


def require_few_values(params: SamplingParams, num_prompts: int) -> None:
    """Raises InvalidRequestError if lists and arguments, times prompts, times `n`, exceed the worker's limit."""
    sequences = num_prompts * params.n
    counts = {name: count for name in (*LISTS, *ARGUMENTS) if (count := num_values(getattr(params, name)))}
    each = sum(counts.values())
    # The limits of a request body bound the values of one sequence.
    if sequences <= 1 or each * sequences <= MAX_CARRIED_VALUES:
        return
    largest = max(counts, key=counts.__getitem__)
    fields = ", ".join(sorted(counts, key=counts.__getitem__, reverse=True))
    raise InvalidRequestError(
        largest,
        f"{fields} have {each} values, which {sequences} sequences ({num_prompts} prompts, n = {params.n}) carry each; "
        f"all of them together may carry {MAX_CARRIED_VALUES}",
    )


def num_values(value: Any) -> int:
    """Returns the number of entries of a list or object, nested ones included; 0 for anything else."""
    count, level = 0, [value]
    while level:
        inside = [each for each in level if isinstance(each, (list, dict))]
        count += sum(map(len, inside))
        level = [each for one in inside for each in (one.values() if isinstance(one, dict) else one)]
    return count
