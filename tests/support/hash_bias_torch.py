"""The processor of `hash_bias` in the dialects that are written for torch."""

from __future__ import annotations

from typing import Any

import torch
from transformers import LogitsProcessor

from support.hash_bias import SlotStates, VllmState, place


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


def torch_slot_keyed_classes() -> list[type]:
    """The same for vLLM's model runner V2; only inside `vllm_stand_ins`."""
    from vllm.v1.worker.gpu.sample.logits_processor import LogitsContext, LogitsProcRequestState
    from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor as Base

    class TorchMrv2(Base):
        def __init__(self, vllm_config: Any, req_states: LogitsProcRequestState) -> None:
            assert vllm_config.model_config.dtype is torch.float32
            self._requests = req_states
            self._states = SlotStates(req_states.max_num_reqs)
            self._tokens = torch.full((req_states.max_num_reqs,), -1, dtype=torch.int64, device=req_states.device)

        def add_request(self, req_idx: int, sampling_params: Any) -> bool:
            return self._states.add(req_idx, sampling_params)

        def apply_staged_writes(self) -> None:
            self._tokens.copy_(torch.from_numpy(self._states.token), non_blocking=True)

        def apply(self, logits: torch.Tensor, ctx: LogitsContext) -> torch.Tensor:
            tokens = self._tokens[ctx.expanded_idx_mapping.long()]
            for row in torch.nonzero(tokens >= 0).flatten().tolist():
                slot = ctx.idx_mapping_np[row]
                ids = self._requests.all_token_ids.gpu[slot, : ctx.seq_lens_upper_bound_np[row]].tolist()
                assert len(ids) == self._requests.total_len.gpu[slot] == ctx.pos[row] + 1
                assert ids[-1] == ctx.input_ids[row]
                logits[row, place(int(tokens[row]), ids)] += float(self._states.value[slot])
            return logits

    class TorchMrv2Copies(TorchMrv2):
        def apply(self, logits: torch.Tensor, ctx: LogitsContext) -> torch.Tensor:
            return super().apply(logits.clone(), ctx)

    return [TorchMrv2, TorchMrv2Copies]
