"""The processor of `hash_bias` in the dialects that are written for torch."""

from __future__ import annotations

from typing import Any

import torch
from transformers import LogitsProcessor

from support.hash_bias import VllmState, place


class HuggingFace(LogitsProcessor):
    def __init__(self, hash_bias: Any) -> None:
        self._token, self._value = hash_bias

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        assert input_ids.shape[0] == scores.shape[0] == 1
        changed = scores.clone()
        changed[0, place(self._token, input_ids[0].tolist())] += self._value
        return changed


def torch_vllm_classes() -> list[type]:
    """An in-place and an out-of-place processor; only inside `vllm_stand_ins`."""
    from vllm.v1.sample.logits_processor import LogitsProcessor as Base

    class TorchVllm(Base):
        def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
            self._state = VllmState()

        def is_argmax_invariant(self) -> bool:
            return False

        def update_state(self, batch_update: Any) -> None:
            self._state.update(batch_update)

        def apply(self, logits: torch.Tensor) -> torch.Tensor:
            for row, token, value in self._state.edits():
                logits[row, token] += value
            return logits

    class TorchVllmCopies(TorchVllm):
        def apply(self, logits: torch.Tensor) -> torch.Tensor:
            return super().apply(logits.clone())

    return [TorchVllm, TorchVllmCopies]
