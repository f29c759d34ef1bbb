"""Masks of three dialects that ban tokens in every row, and processors around them that a request can choose."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import BaseModel

from fastdeploy_lp.logits_processor import vllm_v1
from fastdeploy_lp.openai.logits_processor import LogitsProcessor

if TYPE_CHECKING:
    from paddle import Tensor

BANNED_BY_ROWS = 2
BANNED_BY_PLUGIN = 3
BANNED_BY_VLLM = 5
NEGATIVE_INFINITY = float("-inf")


def banned(vocab_size: int) -> np.ndarray:
    """The ids that one of the masks bans: multiples of small primes."""
    ids = np.arange(vocab_size)
    return ids[(ids % BANNED_BY_ROWS == 0) | (ids % BANNED_BY_PLUGIN == 0) | (ids % BANNED_BY_VLLM == 0)]


class Unbans(LogitsProcessor):
    """Makes all logits of a row the same: after a mask it would lift the ban."""

    def __init__(self, fd_config: Any) -> None: ...

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        """Needs nothing."""

    def apply(self, logits: Tensor) -> Tensor:
        logits[:] = 0.0
        return logits


class RowMask(LogitsProcessor):
    """Native: every row."""

    def __init__(self, fd_config: Any) -> None:
        self._step = BANNED_BY_ROWS

    def update_state(self, share_inputs: Mapping[str, Any]) -> None: ...

    def apply(self, logits: Tensor) -> Tensor:
        logits[:, :: self._step] = NEGATIVE_INFINITY
        return logits


class VllmMask(vllm_v1.LogitsProcessor):
    """vLLM's dialect: every row."""

    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None: ...

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: Any) -> None: ...

    def apply(self, logits: Tensor) -> Tensor:
        logits[:, ::BANNED_BY_VLLM] = NEGATIVE_INFINITY
        return logits


class PluginParameters(BaseModel):
    """A client may say more, but not less."""

    also: int | None = None


class PluginMask:
    """A plugin: the row of its request."""

    def __init__(self, tokenizer: Any, parameters: PluginParameters) -> None:
        self._also = parameters.also

    def __call__(self, token_ids: list[int], logits: Tensor) -> Tensor:
        logits[::BANNED_BY_PLUGIN] = NEGATIVE_INFINITY
        if self._also is not None:
            logits[self._also] = NEGATIVE_INFINITY
        return logits


plugin_mask = {"logits_processor_class": PluginMask, "parameters_model": PluginParameters}

CHAIN = (
    "support.masks:Unbans",
    "early=LogitBiasLogitsProcessor",
    "support.masks:RowMask",
    "LogitBiasLogitsProcessor",
    "plugin_mask=support.masks:plugin_mask",
    "late=LogitBiasLogitsProcessor",
    "support.masks:VllmMask",
    "SequenceBiasLogitsProcessor",
)
MANDATORY = ("RowMask", "plugin_mask", "VllmMask")
