"""A processor that fails, in every dialect; it changes nothing until then.

Requests that pass `fail` are its victims when they have FAULT_STEP output tokens; others use it without harm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
from pydantic import BaseModel

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.logits_processor import LogitsProcessor, vllm_mrv2, vllm_v1
from fastdeploy_lp.request.sampling_params import SamplingParams

FAULT_STEP = 2


class Fault:
    """What goes wrong, and in which method."""

    mode: ClassVar[str] = ""

    @classmethod
    def strike(cls, logits: Any) -> Any:
        """Fail on the logits of a batch or of a row, of Paddle or torch."""
        if cls.mode == "half":
            logits[: max(logits.shape[0] // 2, 1)] = 1e9
        if cls.mode in ("raise", "half"):
            raise ZeroDivisionError("broken by a test")
        if cls.mode == "shape":
            return logits[..., :-1]
        if cls.mode == "one number":
            return logits.max()
        if cls.mode == "dtype":
            return logits.double() if type(logits).__module__.startswith("torch") else logits.astype("float64")
        if cls.mode == "no tensor":
            return [1.0] * 512
        if cls.mode == "nothing":
            return None
        if cls.mode == "new tensor":
            return logits + 0.0
        return logits

    @classmethod
    def strike_state(cls) -> None:
        """Fail where state is read or made."""
        if cls.mode == "state":
            raise ZeroDivisionError("broken by a test")


class Native(LogitsProcessor):
    def __init__(self, fd_config: FDConfig) -> None:
        self._due = False

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        active = np.flatnonzero(~share_inputs["stop_flags"][:, 0])
        fails = [slot for slot in active if share_inputs["logits_processors_args"][slot].fail]
        self._due = any(share_inputs["step_idx"][slot, 0] == FAULT_STEP for slot in fails)
        if self._due:
            Fault.strike_state()

    def apply(self, logits: Any) -> Any:
        return Fault.strike(logits) if self._due else logits


class VllmBody:
    """The methods of a processor for vLLM, on whichever base class."""

    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None:
        self._outputs: list[list[int]] = []

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: vllm_v1.BatchUpdate | None) -> None:
        if batch_update is not None:
            self._outputs += [
                output for _, params, _, output in batch_update.added if (params.extra_args or {}).get("fail")
            ]
        if any(len(output) == FAULT_STEP for output in self._outputs):
            Fault.strike_state()

    def apply(self, logits: Any) -> Any:
        return Fault.strike(logits) if any(len(output) == FAULT_STEP for output in self._outputs) else logits


class Vllm(VllmBody, vllm_v1.LogitsProcessor): ...


class SlotBody:
    """The methods of a slot-keyed processor for vLLM, on whichever base class."""

    def __init__(self, vllm_config: Any, req_states: Any) -> None:
        self._requests = req_states
        self._fails = np.zeros(req_states.max_num_reqs, bool)

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
        args = sampling_params.extra_args or {}
        self._fails[req_idx] = bool(args.get("fail"))
        return "fail" in args

    def apply_staged_writes(self) -> None:
        if self._due.any():
            Fault.strike_state()

    def apply(self, logits: Any, ctx: Any) -> Any:
        return Fault.strike(logits) if self._due[ctx.idx_mapping_np].any() else logits

    @property
    def _due(self) -> Any:
        generated = self._requests.total_len.np - self._requests.prompt_len.np
        return self._fails & (generated == FAULT_STEP)


class Mrv2(SlotBody, vllm_mrv2.LogitsProcessor): ...


class Request(vllm_v1.AdapterLogitsProcessor):
    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> Callable[..., Any] | None:
        if "fail" not in (params.extra_args or {}):
            return None
        if not (params.extra_args or {})["fail"]:
            return lambda _, row: row
        Fault.strike_state()
        return lambda output_ids, row: Fault.strike(row) if len(output_ids) == FAULT_STEP else row


class Parameters(BaseModel):
    fail: bool


class Plugin:
    def __init__(self, tokenizer: Any, parameters: Parameters) -> None:
        self._fail = parameters.fail
        if self._fail:
            Fault.strike_state()

    def __call__(self, token_ids: list[int], logits: Any) -> Any:
        return Fault.strike(logits) if self._fail and len(token_ids) == FAULT_STEP else logits


PLUGIN = {"logits_processor_class": Plugin, "parameters_model": Parameters}


class AtParameters(BaseModel):
    at: int


class AtPlugin:
    """Raises in the step in which its request has `at` output tokens."""

    def __init__(self, tokenizer: Any, parameters: AtParameters) -> None:
        self._at = parameters.at

    def __call__(self, token_ids: list[int], logits: Any) -> Any:
        if len(token_ids) == self._at:
            raise ZeroDivisionError("broken by a test")
        return logits


AT_PLUGIN = {"logits_processor_class": AtPlugin, "parameters_model": AtParameters}
