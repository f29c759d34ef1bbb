"""Processors that take sequences of tokens back, in every dialect that has a place for it, and their reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import BaseModel

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.logits_processor import LogitsProcessor, vllm_mrv2, vllm_v1
from fastdeploy_lp.logits_processor.actions import RequestActions

if TYPE_CHECKING:
    from paddle import Tensor

LONGEST = 4


class RewindsParams(BaseModel):
    """`forbids`: sequences of tokens that the output must not contain. emits: send each number of tokens."""

    forbids: list[list[int]] = []
    emits: bool = False


def found(output: Sequence[int], forbids: Sequence[Sequence[int]]) -> tuple[int, list[int]] | None:
    """The tokens to take back and to ban if the output ends with one of the sequences."""
    ending = [each for each in forbids if list(output[-len(each) :]) == list(each)]
    return (len(longest := max(ending, key=len)), [longest[0]]) if ending else None


class Rewinds(LogitsProcessor):
    """Takes back what a request forbids."""

    Params = RewindsParams
    only_with_args = True
    keeps_rows_valid = True
    max_rewind = LONGEST

    def __init__(self, fd_config: FDConfig) -> None: ...

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        args, outputs = share_inputs["logits_processors_args"], share_inputs["output_token_ids"]
        for slot in np.flatnonzero(~share_inputs["stop_flags"][:, 0]).tolist():
            forbids = args[slot].forbids
            if args[slot].emits:
                self.actions.emit(slot, len(outputs[slot]))
            if forbids and (back := found(outputs[slot], forbids)):
                self.actions.rewind(slot, *back)

    def apply(self, logits: Tensor) -> Tensor:
        return logits


class VllmRewinds(vllm_v1.LogitsProcessor):
    """By rows, in `apply`."""

    max_rewind = LONGEST

    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None:
        self.by_request: dict[int, tuple[dict[str, Any], list[int]]] = {}

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: vllm_v1.BatchUpdate | None) -> None:
        vllm_v1.follow_rows(
            self.by_request,  # type: ignore[arg-type] - any state can be followed
            batch_update,
            lambda params, _, output: (params.extra_args or {}, output),  # type: ignore[arg-type,return-value]
        )

    def apply(self, logits: Tensor) -> Tensor:
        for row, (asked, output) in self.by_request.items():
            if back := found(output, asked.get("forbids", ())):
                self.actions.rewind(row, *back)
        return logits


class SlotKeyedRewinds(vllm_mrv2.LogitsProcessor):
    """By slots; keeps the tokens itself, from the last one of each step."""

    max_rewind = LONGEST

    def __init__(self, vllm_config: Any, req_states: Any) -> None:
        self.states = req_states
        self.forbids: dict[int, list[list[int]]] = {}
        self.outputs: dict[int, list[int]] = {}

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        self.forbids[req_idx] = (sampling_params.extra_args or {}).get("forbids", [])
        prompt, filled = (int(each.np[req_idx]) for each in (self.states.prompt_len, self.states.prefill_len))
        self.outputs[req_idx] = self.states.all_token_ids.gpu[req_idx, prompt : filled - 1].tolist()
        return bool(self.forbids[req_idx])

    def apply(self, logits: Tensor, ctx: Any) -> Tensor:
        for slot, last in zip(ctx.idx_mapping_np.tolist(), ctx.input_ids.tolist(), strict=True):
            if int(self.states.total_len.np[slot]) > int(self.states.prompt_len.np[slot]):
                self.outputs[slot].append(last)
            if back := found(self.outputs[slot], self.forbids[slot]):
                self.actions.rewind(slot, *back)
        return logits


class RequestRewinds(vllm_v1.AdapterLogitsProcessor):
    """A callable for each request that takes `actions`."""

    max_rewind = LONGEST

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: Any) -> Any:
        forbids = (params.extra_args or {}).get("forbids")

        def process(output_ids: list[int], row: Tensor, actions: RequestActions) -> Tensor:
            back = found(output_ids, forbids)
            if back is not None and back[0] <= actions.rewindable:
                actions.rewind(*back)
            return row

        return process if forbids else None


class PluginRewinds:
    """An instance for each request that counts its own calls."""

    max_rewind = LONGEST

    def __init__(self, tokenizer: Any, parameters: RewindsParams) -> None:
        self.forbids = parameters.forbids
        self.calls = 0

    def __call__(self, token_ids: list[int], logits: Tensor, *, actions: RequestActions) -> Tensor:
        # An instance is called once for each token, in order.
        if self.calls != len(token_ids):
            raise ValueError(f"call {self.calls} with {len(token_ids)} tokens")
        self.calls += 1
        if back := found(token_ids, self.forbids):
            actions.rewind(*back)
        return logits


PLUGIN = {"logits_processor_class": PluginRewinds, "parameters_model": RewindsParams}


class TorchRewinds:
    """The same for torch."""

    max_rewind = LONGEST

    def __init__(self, forbids: list[list[int]]) -> None:
        self.forbids = forbids

    def __call__(self, past_token_ids: list[int], logits: Any, *, actions: RequestActions) -> Any:
        if back := found(past_token_ids, self.forbids):
            actions.rewind(*back)
        return logits


class BanAtParams(BaseModel):
    """`ban_at`: by number of output tokens, the tokens that are banned there."""

    ban_at: dict[int, list[int]]


class BanAt(LogitsProcessor):
    """Bans tokens at places, for the reference."""

    Params = BanAtParams
    only_with_args = True

    def __init__(self, fd_config: FDConfig) -> None:
        self.banned: list[tuple[int, list[int]]] = []

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        args, outputs = share_inputs["logits_processors_args"], share_inputs["output_token_ids"]
        active = np.flatnonzero(~share_inputs["stop_flags"][:, 0]).tolist()
        self.banned = [
            (row, args[slot].ban_at.get(len(outputs[slot]), []) if args[slot] else [])
            for row, slot in enumerate(active)
        ]

    def apply(self, logits: Tensor) -> Tensor:
        for row, tokens in self.banned:
            for token in tokens:
                logits[row, token] = float("-inf")
        return logits


class RewindsWrongly(LogitsProcessor):
    """Rewinds as a request asks for, once its output has `at` tokens."""

    class Params(BaseModel):
        at: int
        count: Any = 1
        ban: Any = ()

    only_with_args = True
    max_rewind = LONGEST

    def __init__(self, fd_config: FDConfig) -> None: ...

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        args, outputs = share_inputs["logits_processors_args"], share_inputs["output_token_ids"]
        for slot in np.flatnonzero(~share_inputs["stop_flags"][:, 0]).tolist():
            if args[slot] and len(outputs[slot]) == args[slot].at:
                asked = args[slot]
                self.actions.rewind(slot, asked.get("count", 1), asked.get("ban", ()))

    def apply(self, logits: Tensor) -> Tensor:
        return logits


class RewindsUndeclared(RewindsWrongly):
    """Declares no `max_rewind`."""

    max_rewind = 0


def without(forbids: Sequence[Sequence[int]], decode: Callable[[dict[int, list[int]]], list[int]]) -> list[int]:
    """The greedy output that contains none of the sequences, by whole runs in which tokens are banned at places.

    decode: the output with tokens banned at these numbers of tokens.
    """
    bans: dict[int, list[int]] = {}
    while True:
        output = decode(bans)
        backs = ((length, found(output[:length], forbids)) for length in range(1, len(output) + 1))
        first = next(((length, back) for length, back in backs if back is not None), None)
        if first is None:
            return output
        length, (count, ban) = first
        place = length - count
        bans = {at: tokens for at, tokens in bans.items() if at <= place}
        bans[place] = bans.get(place, []) + ban
