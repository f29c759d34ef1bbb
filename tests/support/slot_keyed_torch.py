"""Processors for vLLM's slot-keyed interface as vLLM's documents, examples and tests describe theirs; written here.

Imported where `vllm` is vLLM's or its stand-ins, like a package that was written for vLLM.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from vllm.config import VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.gpu_sync_debug import gpu_sync_allowed
from vllm.utils.torch_utils import async_tensor_h2d
from vllm.v1.worker.gpu.buffer_utils import StagedWriteTensor, UvaBackedTensor
from vllm.v1.worker.gpu.sample.logits_processor import LogitsContext, LogitsProcessor, LogitsProcRequestState


def argument(params: SamplingParams, name: str) -> Any:
    return (params.extra_args or {}).get(name)


class TargetToken(LogitsProcessor):
    """The guide's example: leaves nothing but `target_token`, staged on the host and flushed once a step."""

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        token = argument(sampling_params, "target_token")
        if token is not None and not isinstance(token, int):
            raise ValueError(f"target_token value {token} is not int")

    def __init__(self, vllm_config: VllmConfig, req_states: LogitsProcRequestState) -> None:
        self.staged = torch.full((req_states.max_num_reqs,), -1, dtype=torch.int64)
        self.targets = self.staged.clone().to(req_states.device)

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
        token = argument(sampling_params, "target_token")
        self.staged[req_idx] = -1 if token is None else token
        return token is not None

    def apply_staged_writes(self) -> None:
        self.targets.copy_(self.staged, non_blocking=True)

    def apply(self, logits: torch.Tensor, ctx: LogitsContext) -> torch.Tensor:
        targets = self.targets[ctx.expanded_idx_mapping.long()]
        rows = torch.nonzero(targets >= 0).squeeze(1)
        kept = logits[rows, targets[rows]].clone()
        logits[rows] = -torch.inf
        logits[rows, targets[rows]] = kept
        return logits


class NoRepeat(LogitsProcessor):
    """As the OCR models' processor: bans tokens that would repeat an n-gram of the output; lengths are the host's."""

    def __init__(self, vllm_config: VllmConfig, req_states: LogitsProcRequestState) -> None:
        if vllm_config.speculative_config is not None:
            raise ValueError("speculative decoding is not supported")
        self.states = req_states
        self.prompt_lens = req_states.prompt_len.np
        self.sizes = np.zeros(req_states.max_num_reqs, np.int64)

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
        self.sizes[req_idx] = argument(sampling_params, "ngram_size") or 0
        return bool(self.sizes[req_idx])

    def apply(self, logits: torch.Tensor, ctx: LogitsContext) -> torch.Tensor:
        slots = ctx.idx_mapping_np
        if logits.shape[0] != slots.shape[0]:
            raise ValueError("several rows of a request")
        lens = ctx.seq_lens_upper_bound_np.astype(np.int64)
        rows = np.flatnonzero((self.sizes[slots] > 0) & (lens - self.prompt_lens[slots] >= self.sizes[slots]))
        for row in rows:
            size, begin = int(self.sizes[slots[row]]), int(self.prompt_lens[slots[row]])
            index = async_tensor_h2d([int(slots[row])], self.states.device)
            output = self.states.all_token_ids.gpu[index, begin : int(lens[row])].long()[0]
            grams = output.unfold(0, size, 1)
            seen = (grams[:, :-1] == output[len(output) - size + 1 :]).all(1)
            logits[row, grams[seen, -1]] = -torch.inf
        return logits


class Continuation(LogitsProcessor):
    """Forces `forced_tokens`, found by a row's position and the length of its request's prompt, all on the device."""

    def __init__(self, vllm_config: VllmConfig, req_states: LogitsProcRequestState) -> None:
        self.states = req_states
        shape = req_states.max_num_reqs, vllm_config.model_config.max_model_len
        self.tokens = StagedWriteTensor(shape, dtype=torch.int64, device=req_states.device)
        self.counts = UvaBackedTensor(req_states.max_num_reqs, dtype=torch.int32)

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
        tokens = argument(sampling_params, "forced_tokens") or []
        self.counts.np[req_idx] = len(tokens)
        self.tokens.stage_write(req_idx, 0, tokens)
        return bool(tokens)

    def apply_staged_writes(self) -> None:
        self.tokens.apply_write()
        self.counts.copy_to_uva()

    def apply(self, logits: torch.Tensor, ctx: LogitsContext) -> torch.Tensor:
        slots = ctx.expanded_idx_mapping.long()
        place = (ctx.pos + 1 - self.states.prompt_len.gpu[slots]).long()
        forced = place < self.counts.gpu[slots]
        tokens = self.tokens.gpu[slots, place]
        rows = torch.arange(logits.shape[0], device=logits.device)
        kept = logits[rows, tokens].clone()
        logits.masked_fill_(forced[:, None], -torch.inf)
        logits[rows, tokens] = kept
        return logits


class RowByRow(LogitsProcessor):
    """A processor for each request, called on its row with its history; bans what `banned_after` says."""

    def __init__(self, vllm_config: VllmConfig, req_states: LogitsProcRequestState) -> None:
        self.history = req_states.all_token_ids.gpu
        self.requests: dict[int, dict[str, int]] = {}

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
        self.requests.pop(req_idx, None)
        rules = argument(sampling_params, "banned_after")
        if rules is None:
            return False
        self.requests[req_idx] = rules
        return True

    def apply(self, logits: torch.Tensor, ctx: LogitsContext) -> torch.Tensor:
        for row, slot in enumerate(ctx.idx_mapping_np):
            rules = self.requests.get(int(slot))
            if rules is None:
                continue
            with gpu_sync_allowed():
                last = int(self.history[int(slot), int(ctx.seq_lens_upper_bound_np[row]) - 1])
            if str(last) in rules:
                logits[row, rules[str(last)]] = -torch.inf
        return logits


class Recording(LogitsProcessor):
    """As in vLLM's test of the life cycle: records every call, and adds BOOST to BOOSTED."""

    BOOSTED, BOOST = 7, 100.0
    events: ClassVar[list[str]] = []
    seen: ClassVar[list[torch.Tensor]] = []

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
        self.events.append(f"add_request:{req_idx}")
        return True

    def apply_staged_writes(self) -> None:
        self.events.append("apply_staged_writes")

    def apply(self, logits: torch.Tensor, ctx: LogitsContext) -> torch.Tensor:
        self.events.append("apply")
        self.seen.append(logits.clone())
        logits[:, self.BOOSTED] += self.BOOST
        return logits
