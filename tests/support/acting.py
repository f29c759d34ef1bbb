"""Processors that act, in every dialect that has a place for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import BaseModel

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.logits_processor import LogitsProcessor, vllm_mrv2, vllm_v1
from fastdeploy_lp.logits_processor.actions import Actions, RequestActions

if TYPE_CHECKING:
    from paddle import Tensor


class ActsParams(BaseModel):
    """`finish_at`: the number of output tokens at which the request ends. `emit_at`: those at which a value is sent.

    `emits`: the value, by default the number of tokens. in_apply: act in `apply` in place of `update_state`.
    """

    finish_at: int | None = None
    emit_at: list[int] = []
    emits: Any = None
    in_apply: bool = False


class Acts(LogitsProcessor):
    """Does what a request asks for, and changes no logits."""

    Params = ActsParams
    only_with_args = True
    keeps_rows_valid = True

    def __init__(self, fd_config: FDConfig) -> None:
        self.todo: list[tuple[int, int, Mapping[str, Any]]] = []

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        args, outputs = share_inputs["logits_processors_args"], share_inputs["output_token_ids"]
        self.todo = [
            (slot, len(outputs[slot]), args[slot])
            for slot in np.flatnonzero(~share_inputs["stop_flags"][:, 0]).tolist()
            if args[slot]
        ]
        for slot, count, asked in self.todo:
            if not asked.get("in_apply"):
                act(self.actions, slot, count, asked)

    def apply(self, logits: Tensor) -> Tensor:
        for slot, count, asked in self.todo:
            if asked.get("in_apply"):
                act(self.actions, slot, count, asked)
        return logits


class ActsQuietly(Acts):
    """The same, left out where all rows are greedy."""

    def is_argmax_invariant(self) -> bool:
        return True


def act(actions: Actions, slot: int, count: int, asked: Mapping[str, Any]) -> None:
    if count in asked.get("emit_at", ()):
        actions.emit(slot, count if asked.get("emits") is None else asked["emits"])
    if asked.get("finish_at") == count:
        actions.finish(slot, f"after {count}")


def act_on_request(actions: RequestActions, count: int, asked: Mapping[str, Any]) -> None:
    if count in asked.get("emit_at", ()):
        actions.emit(count if asked.get("emits") is None else asked["emits"])
    if asked.get("finish_at") == count:
        actions.finish(f"after {count}")


class VllmActs(vllm_v1.LogitsProcessor):
    """By rows, as a batch processor for vLLM finds its requests."""

    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None:
        self.rows: list[tuple[dict[str, Any], list[int]]] = []
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
            act(self.actions, row, len(output), asked)
        return logits


class SlotKeyedActs(vllm_mrv2.LogitsProcessor):
    """By slots."""

    def __init__(self, vllm_config: Any, req_states: Any) -> None:
        self.states = req_states
        self.asked: dict[int, dict[str, Any]] = {}

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        self.asked[req_idx] = sampling_params.extra_args or {}
        return bool(self.asked[req_idx])

    def apply(self, logits: Tensor, ctx: Any) -> Tensor:
        for slot in ctx.idx_mapping_np.tolist():
            count = int(self.states.total_len.np[slot] - self.states.prompt_len.np[slot])
            act(self.actions, slot, count, self.asked[slot])
        return logits


class RequestActs(vllm_v1.AdapterLogitsProcessor):
    """A callable for each request that takes `actions`."""

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: Any) -> Any:
        asked = params.extra_args or {}

        def process(output_ids: list[int], row: Tensor, actions: RequestActions) -> Tensor:
            act_on_request(actions, len(output_ids), asked)
            return row

        return process if asked else None


class PluginActs:
    """An instance for each request whose call takes `actions`."""

    def __init__(self, tokenizer: Any, parameters: ActsParams) -> None:
        self.asked = parameters.model_dump()

    def __call__(self, token_ids: list[int], logits: Tensor, *, actions: RequestActions) -> Tensor:
        act_on_request(actions, len(token_ids), self.asked)
        return logits


PLUGIN = {"logits_processor_class": PluginActs, "parameters_model": ActsParams}


class TorchActs:
    """The same for torch."""

    def __init__(self, finish_at: int | None = None, emit_at: list[int] | None = None) -> None:
        self.asked = {"finish_at": finish_at, "emit_at": emit_at or []}

    def __call__(self, past_token_ids: list[int], logits: Any, *, actions: RequestActions) -> Any:
        act_on_request(actions, len(past_token_ids), self.asked)
        return logits


def acts_function(prompt_ids: Any, past_ids: Any, logits: Any, actions: Any, finish_at: int) -> Any:
    """A function whose `actions` are no argument of the request."""
    act_on_request(actions, len(past_ids), {"finish_at": finish_at})
    return logits


class ActsElsewhere(Acts):
    """Acts on the slot after its own."""

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        for slot in share_inputs["using_slots"]:
            self.actions.finish(slot + 1, "not mine")


class Answer(BaseModel):
    """What `ActsTyped` emits."""

    score: float


class ActsTyped(Acts):
    """Declares its values."""

    Output = Answer


class FailsAfter(LogitsProcessor):
    """Fails in the step with this number of tokens, as a whole."""

    class Params(BaseModel):
        fails_at: int

    only_with_args = True

    def __init__(self, fd_config: FDConfig) -> None:
        self.fails = False

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        args, outputs = share_inputs["logits_processors_args"], share_inputs["output_token_ids"]
        self.fails = any(len(outputs[slot]) == args[slot].fails_at for slot in share_inputs["using_slots"])

    def apply(self, logits: Tensor) -> Tensor:
        if self.fails:
            raise ZeroDivisionError("as asked")
        return logits
