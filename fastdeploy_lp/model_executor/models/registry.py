"""Which class runs which architecture."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, Protocol

from paddle import Tensor

from fastdeploy_lp.config import ModelConfig
from fastdeploy_lp.model_executor.forward_batch import ForwardBatch
from fastdeploy_lp.model_executor.kv_cache import LayerKVCache
from fastdeploy_lp.model_executor.loader.weights import Weights

MODELS: dict[str, str] = {
    "LlamaForCausalLM": "fastdeploy_lp.model_executor.models.llama:LlamaForCausalLM",
}


class CausalLM(Protocol):
    """What the model runner needs of a model; built as `cls(model_config, weights, caches)`."""

    def __init__(self, config: ModelConfig, weights: Weights, caches: Sequence[LayerKVCache]) -> None: ...

    def forward(self, batch: ForwardBatch) -> Tensor:
        """Final hidden states [sequences, hidden_size] of every chunk's last token."""

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Logits [sequences, vocab_size], in a tensor that the chain may overwrite."""


def model_class(hf_config: dict[str, Any]) -> type[CausalLM]:
    """The class for `config.json`'s `architectures`; raises ValueError listing the known ones."""
    architectures = hf_config.get("architectures") or []
    for architecture in architectures:
        if architecture in MODELS:
            module_path, _, name = MODELS[architecture].partition(":")
            found: type[CausalLM] = getattr(importlib.import_module(module_path), name)
            return found
    raise ValueError(f"config.json: architectures {architectures} are not supported; supported are {', '.join(MODELS)}")
