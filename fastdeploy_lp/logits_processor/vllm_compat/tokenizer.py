"""vLLM's functions for tokenizers: the served model's or any other on this machine, through transformers."""

from __future__ import annotations

import functools
from typing import Any, Protocol

from fastdeploy_lp.logits_processor.vllm_config import VllmModelConfig

MODES: dict[str, dict[str, Any]] = {"auto": {}, "hf": {}, "slow": {"use_fast": False}}


class TokenizerLike(Protocol):
    """A tokenizer, with the methods that processors use."""

    def encode(self, text: str, **options: Any) -> list[int]:
        """Returns the token ids of a text."""

    def decode(self, ids: Any, **options: Any) -> str:
        """Returns the text of token ids."""

    def get_vocab(self) -> dict[str, int]:
        """Returns the token ids by token."""


@functools.cache
def get_tokenizer(
    tokenizer_name: str, *, tokenizer_mode: str = "auto", trust_remote_code: bool = False, **options: Any
) -> Any:
    """Returns the tokenizer in a directory, one object for each; passes `options` to `AutoTokenizer.from_pretrained`.

    Raises ValueError for `trust_remote_code`, since code of a checkpoint is never run here, and for a mode other than
    "auto", "hf" and "slow"; also raises the errors of `from_pretrained`.
    """
    if trust_remote_code:
        raise ValueError("trust_remote_code: code that a checkpoint brings is not run here")
    if tokenizer_mode not in MODES:
        raise ValueError(f"tokenizer_mode: must be one of {', '.join(MODES)} here, not {tokenizer_mode!r}")
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tokenizer_name, **(MODES[tokenizer_mode] | options))


def cached_tokenizer_from_config(model_config: VllmModelConfig) -> Any:
    """Returns the served model's tokenizer."""
    return get_tokenizer(
        model_config.tokenizer,
        tokenizer_mode=model_config.tokenizer_mode,
        trust_remote_code=model_config.trust_remote_code,
        revision=model_config.tokenizer_revision,
    )
