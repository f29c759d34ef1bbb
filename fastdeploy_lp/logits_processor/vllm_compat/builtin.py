"""vLLM's builtin processors on torch tensors, for packages that derive from them or use them in their tests.

A chain needs none of them: this server's sampler and builtins do the same, faster.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from fastdeploy_lp.logits_processor.vllm_compat.batch import LogitsProcessor
from fastdeploy_lp.logits_processor.vllm_config import VllmConfig
from fastdeploy_lp.logits_processor.vllm_v1 import BatchUpdate, MoveDirectionality
from fastdeploy_lp.request.sampling_params import SamplingParams

State = TypeVar("State")


def process_dict_updates(
    req_entries: dict[int, State],
    batch_update: BatchUpdate | None,
    new_state: Callable[[SamplingParams, list[int] | None, list[int]], State | None],
) -> bool:
    """Keeps `req_entries`, states by row, with their requests; returns True if an entry came, left or moved.

    new_state: (params, prompt ids, output ids) → the state of a new request, None if it needs none.
    """
    if batch_update is None:
        return False
    changed = False
    for row in batch_update.removed:
        changed |= req_entries.pop(row, None) is not None
    for row, params, prompt_ids, output_ids in batch_update.added:
        state = new_state(params, prompt_ids, output_ids)
        changed |= req_entries.pop(row, None) is not None or state is not None
        if state is not None:
            req_entries[row] = state
    for source, target, direction in batch_update.moved:
        moved, replaced = req_entries.pop(source, None), req_entries.pop(target, None)
        changed |= moved is not None or replaced is not None
        if moved is not None:
            req_entries[target] = moved
        if replaced is not None and direction is MoveDirectionality.SWAP:
            req_entries[source] = replaced
    return changed


class _RowStates(LogitsProcessor):
    """Base of the processors below: a state for each row that needs one."""

    def __init__(self, vllm_config: VllmConfig, device: Any, is_pin_memory: bool) -> None:  # noqa: ARG002 - contract
        self.device = device
        self.states: dict[int, Any] = {}

    @abstractmethod
    def new_state(self, params: SamplingParams, prompt_ids: list[int] | None, output_ids: list[int]) -> Any | None:
        """Returns the state of a new request, None if it needs none."""

    @abstractmethod
    def edit(self, row: torch.Tensor, state: Any) -> None:
        """Changes a row [vocab_size] in place."""

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Keeps the states with their requests."""
        process_dict_updates(self.states, batch_update, self.new_state)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Edits the rows that have a state."""
        for row, state in self.states.items():
            self.edit(logits[row], state)
        return logits


class LogitBiasLogitsProcessor(_RowStates):
    """Adds `SamplingParams.logit_bias`."""

    def is_argmax_invariant(self) -> bool:
        """Returns False."""
        return False

    def new_state(self, params: SamplingParams, prompt_ids: Any, output_ids: Any) -> Any | None:  # noqa: ARG002
        """Returns tokens and values."""
        if not params.logit_bias:
            return None
        tokens = torch.tensor([int(token) for token in params.logit_bias], device=self.device)
        return tokens, torch.tensor([*params.logit_bias.values()], dtype=torch.float32, device=self.device)

    def edit(self, row: torch.Tensor, state: Any) -> None:
        """Adds the values at the tokens."""
        tokens, values = state
        row[tokens] += values


class MinPLogitsProcessor(_RowStates):
    """Keeps the tokens of at least `SamplingParams.min_p` times the greatest probability."""

    def is_argmax_invariant(self) -> bool:
        """Returns True."""
        return True

    def new_state(self, params: SamplingParams, prompt_ids: Any, output_ids: Any) -> Any | None:  # noqa: ARG002
        """Returns the share."""
        return params.min_p or None

    def edit(self, row: torch.Tensor, state: Any) -> None:
        """Sets all other tokens to -inf."""
        probabilities = torch.softmax(row, dim=-1)
        row.masked_fill_(probabilities < probabilities.max() * state, -torch.inf)

    def get_min_p_by_index(self, index: int) -> float:
        """Returns the share of a row, 0 for none."""
        return float(self.states.get(index, 0.0))


class MinTokensLogitsProcessor(_RowStates):
    """Bans all stop tokens until the output has `SamplingParams.min_tokens` tokens."""

    def is_argmax_invariant(self) -> bool:
        """Returns False."""
        return False

    def new_state(self, params: SamplingParams, prompt_ids: Any, output_ids: list[int]) -> Any | None:  # noqa: ARG002
        """Returns the minimum length, the live output and the stop tokens."""
        if len(output_ids) >= params.min_tokens or not params.all_stop_token_ids:
            return None
        return params.min_tokens, output_ids, torch.tensor(sorted(params.all_stop_token_ids), device=self.device)

    def edit(self, row: torch.Tensor, state: Any) -> None:
        """Sets the stop tokens to -inf while the output is too short."""
        least, output_ids, stops = state
        if len(output_ids) < least:
            row[stops] = -torch.inf
