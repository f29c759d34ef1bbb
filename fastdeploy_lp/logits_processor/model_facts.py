"""Facts about the model that dialects supply to constructors, in the API process and in the worker alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastdeploy_lp.config import FDConfig
    from fastdeploy_lp.model_tokenizer import ModelTokenizer


@dataclass(frozen=True)
class ModelFacts:
    """`vocab_size`: columns of the logits. `tokenizer`: None without a model's directory."""

    vocab_size: int
    tokenizer: ModelTokenizer | None = None

    @classmethod
    def of(cls, fd_config: FDConfig) -> ModelFacts:
        """Returns the facts about the served model."""
        return cls(fd_config.model_config.vocab_size, fd_config.tokenizer)
