"""The failing processor in the dialects that are written for torch."""

from __future__ import annotations

from typing import Any

import torch
from transformers import LogitsProcessor

from support.faulty import FAULT_STEP, Fault, SlotBody, VllmBody

PROMPT_LEN = 3


class HuggingFace(LogitsProcessor):
    """Its prompts have PROMPT_LEN tokens."""

    def __init__(self, fail: bool) -> None:
        self._fail = fail
        if fail:
            Fault.strike_state()

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> Any:
        due = self._fail and input_ids.shape[1] == PROMPT_LEN + FAULT_STEP
        return Fault.strike(scores) if due else scores


def torch_vllm_classes() -> dict[str, type]:
    """One for each of vLLM's interfaces; only inside `vllm_stand_ins`."""
    from vllm.v1.sample.logits_processor import LogitsProcessor as V1Base
    from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor as SlotBase

    class TorchVllm(VllmBody, V1Base): ...

    class TorchMrv2(SlotBody, SlotBase): ...

    return {"TorchVllm": TorchVllm, "TorchMrv2": TorchMrv2}
