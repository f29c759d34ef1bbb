"""vLLM's ways to a tokenizer: that of the served model, or any other one on this machine, by transformers."""

from __future__ import annotations

import functools
from typing import Any, Protocol

from fastdeploy_lp.logits_processor.vllm_config import VllmModelConfig

MODES: dict[str, dict[str, Any]] = {"auto": {}, "hf": {}, "slow": {"use_fast": False}}


class TokenizerLike(Protocol):
    """The methods that processors use of a tokenizer."""

    def encode(self, text: str, **options: Any) -> list[int]:
        """Token ids of a text."""

    def decode(self, ids: Any, **options: Any) -> str:
        """The text of token ids."""

    def get_vocab(self) -> dict[str, int]:
        """Token ids by token."""


@functools.cache
def get_tokenizer(
    tokenizer_name: str, *, tokenizer_mode: str = "auto", trust_remote_code: bool = False, **options: Any
) -> Any:
    """The tokenizer in a directory, one object for each; `options` go to `AutoTokenizer.from_pretrained`.

    Raises ValueError for `trust_remote_code`, since code of a checkpoint is never run here, and for a mode other than
    "auto", "hf" and "slow"; else what `from_pretrained` raises.
    """
    if trust_remote_code:
        raise ValueError("trust_remote_code: code that a checkpoint brings is not run here")
    if tokenizer_mode not in MODES:
        raise ValueError(f"tokenizer_mode: must be one of {', '.join(MODES)} here, not {tokenizer_mode!r}")
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tokenizer_name, **(MODES[tokenizer_mode] | options))


def cached_tokenizer_from_config(model_config: VllmModelConfig) -> Any:
    """The served model's tokenizer."""
    return get_tokenizer(
        model_config.tokenizer,
        tokenizer_mode=model_config.tokenizer_mode,
        trust_remote_code=model_config.trust_remote_code,
        revision=model_config.tokenizer_revision,
    )
