"""Which class runs which architecture."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, Protocol

from paddle import Tensor

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.model_executor.loader.weights import Weights
from fastdeploy_lp.model_executor.sequence_chunk import SequenceChunk

MODELS: dict[str, str] = {
    "LlamaForCausalLM": "fastdeploy_lp.model_executor.models.llama:LlamaForCausalLM",
    "Qwen2ForCausalLM": "fastdeploy_lp.model_executor.models.qwen2:Qwen2ForCausalLM",
    "Qwen3ForCausalLM": "fastdeploy_lp.model_executor.models.qwen3:Qwen3ForCausalLM",
    "Ernie4_5ForCausalLM": "fastdeploy_lp.model_executor.models.ernie4_5:Ernie4_5ForCausalLM",
    "MistralForCausalLM": "fastdeploy_lp.model_executor.models.mistral:MistralForCausalLM",
    "Phi3ForCausalLM": "fastdeploy_lp.model_executor.models.phi3:Phi3ForCausalLM",
}


class CausalLM(Protocol):
    """What the model runner needs of a model; built as `cls(fd_config, weights)`, with a KV cache of its own."""

    def __init__(self, fd_config: FDConfig, weights: Weights) -> None: ...

    def forward(self, chunks: Sequence[SequenceChunk]) -> Tensor:
        """The final hidden states [rows, hidden_size] that the chunks ask for, in the order of the chunks."""

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Logits [rows, vocab_size] of hidden states [rows, hidden_size], in a tensor that the chain may overwrite."""


def model_class(hf_config: dict[str, Any]) -> type[CausalLM]:
    """The class for `config.json`'s `architectures`; raises ValueError listing the known ones."""
    architectures = hf_config.get("architectures") or []
    for architecture in architectures:
        if architecture in MODELS:
            module_path, _, name = MODELS[architecture].partition(":")
            found: type[CausalLM] = getattr(importlib.import_module(module_path), name)
            return found
    raise ValueError(f"config.json: architectures {architectures} are not supported; supported are {', '.join(MODELS)}")
