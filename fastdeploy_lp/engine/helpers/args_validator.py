"""The validator of requests' arguments for a served model, and the model's tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.engine.message_parser import MessageParsers
from fastdeploy_lp.engine.tokenizer import NoTokenizer, Tokenizer
from fastdeploy_lp.logits_processor import DeclaredProcessor, RequestArgsValidator


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
