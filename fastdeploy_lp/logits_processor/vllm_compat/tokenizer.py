"""vLLM's ways to a tokenizer: that of the served model, or any other one on this machine, by transformers."""

from __future__ import annotations

import functools
from typing import Any, Protocol

from fastdeploy_lp.logits_processor.vllm_config import VllmModelConfig


class TokenizerLike(Protocol):
    """The methods that processors use of a tokenizer."""

    def encode(self, text: str, **options: Any) -> list[int]:
        """Token ids of a text."""

    def decode(self, ids: Any, **options: Any) -> str:
        """The text of token ids."""

    def get_vocab(self) -> dict[str, int]:
        """Token ids by token."""


@functools.cache
def get_tokenizer(tokenizer_name: str, *, revision: str | None = None, trust_remote_code: bool = False) -> Any:
    """The tokenizer in a directory, one object for each.

    Raises ValueError for `trust_remote_code`, since code of a checkpoint is never run here, and what
    `AutoTokenizer.from_pretrained` raises.
    """
    if trust_remote_code:
        raise ValueError("trust_remote_code: code that a checkpoint brings is not run here")
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tokenizer_name, revision=revision)


def cached_tokenizer_from_config(model_config: VllmModelConfig) -> Any:
    """The served model's tokenizer."""
    return get_tokenizer(model_config.tokenizer, revision=model_config.tokenizer_revision)
