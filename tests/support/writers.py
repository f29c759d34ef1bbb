"""Processors that write to what all requests share, in the dialects that get to see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from pydantic import BaseModel

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.logits_processor import LogitsProcessor, vllm_v1
from fastdeploy_lp.request.sampling_params import SamplingParams

Write = Callable[[Any, int], Any]


def _set(name: str) -> Write:
    def write(share_inputs: Any, slot: int) -> None:
        share_inputs[name][:] = 1

    return write


def _entry(name: str, write: Callable[[Any], Any]) -> Write:
    return lambda share_inputs, slot: write(share_inputs[name][slot])


def _item(name: str, value: Any) -> Write:
    return lambda share_inputs, slot: share_inputs[name].__setitem__(slot, value)


ARRAYS = ("stop_flags", "prompt_lens", "step_idx", "seed", "token_ids_all_cpu", "next_tokens_cpu", "temperature_cpu")
TENSORS = ("token_ids_all", "next_tokens", "temperature", "top_k")
REFUSED: dict[str, Write] = {
    **{name: _set(name) for name in (*ARRAYS, *TENSORS, "args_versions")},
    "a view of a view": lambda share_inputs, _: share_inputs["stop_flags"][:, 0].fill(False),
    "in place": lambda share_inputs, _: np.logical_not(share_inputs["stop_flags"], out=share_inputs["stop_flags"]),
    "part of a tensor": lambda share_inputs, _: share_inputs["token_ids_all"][0].fill_(7),
    "output append": _entry("output_token_ids", lambda tokens: tokens.append(5)),
    "output extend": _entry("output_token_ids", lambda tokens: tokens.extend([5, 6])),
    "output clear": _entry("output_token_ids", lambda tokens: tokens.clear()),
    "output iadd": _entry("output_token_ids", lambda tokens: tokens.__iadd__([5])),
    "prompt item": _entry("prompt_token_ids", lambda tokens: tokens.__setitem__(0, 9)),
    "prompt delete": _entry("prompt_token_ids", lambda tokens: tokens.__delitem__(0)),
    "prompt reverse": _entry("prompt_token_ids", lambda tokens: tokens.reverse()),
    "prompt pop": _entry("prompt_token_ids", lambda tokens: tokens.pop()),
    "req_ids": _item("req_ids", "another"),
    "args": _item("logits_processors_args", {}),
    "params": _item("sampling_params", None),
    "outputs": _item("output_token_ids", [1]),
    "using_slots": lambda share_inputs, _: share_inputs["using_slots"].clear(),
    "field": lambda share_inputs, _: share_inputs.__setitem__("stop_flags", None),
    "no field": lambda share_inputs, _: share_inputs.__delitem__("stop_flags"),
}
"""Writes that raise, by the place that they are meant for."""

COPIES: dict[str, Write] = {
    "params temperature": _entry("sampling_params", lambda params: setattr(params, "temperature", 9.0)),
    "params logit_bias": _entry("sampling_params", lambda params: params.logit_bias.update({7: 50.0})),
    "own args": _entry("logits_processors_args", lambda args: args.update(place="none")),
    "nested args": _entry("logits_processors_args", lambda args: args["logit_bias"].update({7: 50.0})),
    "all params": lambda share_inputs, _: [
        setattr(params, "max_tokens", 1) for params in share_inputs["sampling_params"] if params is not None
    ],
}
"""Writes to copies, which reach nothing but the processor itself."""


class Writes(LogitsProcessor):
    """Writes where the request's `place` says, for every slot that passes one."""

    def __init__(self, fd_config: FDConfig) -> None: ...

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        places = {**REFUSED, **COPIES}
        for slot in np.flatnonzero(~share_inputs["stop_flags"][:, 0]).tolist():
            place = share_inputs["logits_processors_args"][slot].place
            if place in places:
                places[place](share_inputs, slot)

    def apply(self, logits: Any) -> Any:
        return logits


class VllmWrites(vllm_v1.LogitsProcessor):
    """Writes to the lists that come with a new request."""

    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None: ...

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: vllm_v1.BatchUpdate | None) -> None:
        for _, params, prompt, output in batch_update.added if batch_update else ():
            params.temperature = 9.0
            if (params.extra_args or {}).get("place") == "output":
                output.append(5)
            if (params.extra_args or {}).get("place") == "prompt":
                prompt[0] = 5

    def apply(self, logits: Any) -> Any:
        return logits


class RequestWrites(vllm_v1.AdapterLogitsProcessor):
    """Its callable writes to the lists that it is called with."""

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> Callable[..., Any] | None:
        place = (params.extra_args or {}).get("place")
        return None if place is None else lambda prompt, output, row: _write_lists(place, prompt, output) or row


class Parameters(BaseModel):
    place: str


class PluginWrites:
    """Appends to the output."""

    def __init__(self, tokenizer: Any, parameters: Parameters) -> None: ...

    def __call__(self, token_ids: list[int], logits: Any) -> Any:
        token_ids += [5]
        return logits


PLUGIN = {"logits_processor_class": PluginWrites, "parameters_model": Parameters}


def _write_lists(place: str, prompt: list[int], output: list[int]) -> None:
    if place == "prompt":
        prompt.insert(0, 5)
    else:
        output[:] = [5]
