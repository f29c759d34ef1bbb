"""The hostile processors in the dialects that are written for torch."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from vllm.v1.sample.logits_processor import LogitsProcessor

from support.hostile import Fault, VllmBody


class VllmTorch(VllmBody, LogitsProcessor):
    """vLLM V1; `vllm` is a stand-in, as with --vllm-compat."""

    key = "hostile_vllm_torch"


class HuggingFace(transformers.LogitsProcessor):
    """`at` counts the tokens of the prompt, too: an instance made anew after preemption cannot tell them apart."""

    def __init__(self, hostile_hugging_face: Any) -> None:
        self._fault = Fault.of(hostile_hugging_face)
        self._fault.strike("build")

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        changed: torch.Tensor = self._fault.strike_row(scores, input_ids.shape[1])
        return changed
