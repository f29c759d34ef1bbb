"""vLLM's slot-keyed dialect: processors for its model runner V2, on Paddle tensors or on torch's."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fastdeploy_lp.logits_processor import vllm_mrv2
from fastdeploy_lp.logits_processor.actions import Actions, give_actions
from fastdeploy_lp.logits_processor.base import LogitsProcessor
from fastdeploy_lp.logits_processor.dialects.base import Dialect, require_methods
from fastdeploy_lp.logits_processor.dialects.request_slots import RequestSlots
from fastdeploy_lp.logits_processor.dialects.slot_arrays import PaddleTensors, Tensors, TorchTensors
from fastdeploy_lp.logits_processor.dialects.torch_vllm import refusals_as_value_errors, torch_config
from fastdeploy_lp.logits_processor.errors import contained
from fastdeploy_lp.logits_processor.vllm_config import VllmConfig, set_current_vllm_config
from fastdeploy_lp.logits_processor.vllm_v1 import raise_row_errors, require_same_kind

if TYPE_CHECKING:
    from paddle import Tensor

    from fastdeploy_lp.config import FDConfig
    from fastdeploy_lp.logits_processor.dialects.base import ModelFacts
    from fastdeploy_lp.request.sampling_params import SamplingParams

INTERFACE_MODULE = "vllm.v1.worker.gpu.sample.logits_processor"


class VllmMrv2Dialect(Dialect):
    """Runs subclasses of `fastdeploy_lp.logits_processor.vllm_mrv2.LogitsProcessor` on Paddle tensors."""

    name = "vllm-mrv2"

    def recognizes(self, found: Any) -> bool:
        """Returns True for subclasses of the interface class."""
        return isinstance(found, type) and issubclass(found, vllm_mrv2.LogitsProcessor)

    def check(self, found: Any, spec: str) -> None:
        """Raises LogitsProcessorSpecError for missing methods or another constructor."""
        require_methods(found, spec, "slot-keyed vLLM LogitsProcessor", ("vllm_config", "req_states"))

    def build(self, found: Any, fd_config: FDConfig) -> LogitsProcessor:
        """Returns an instance in a `SlotKeyedProcessor`."""
        tensors = PaddleTensors()
        slots = RequestSlots(fd_config, vllm_mrv2, tensors)
        return SlotKeyedProcessor(found, VllmConfig.from_fd_config(fd_config), slots, tensors)


class TorchVllmMrv2Dialect(VllmMrv2Dialect):
    """Runs subclasses of the `LogitsProcessor` under vLLM's module name in this process, on torch views."""

    name = "torch"

    def recognizes(self, found: Any) -> bool:
        """Returns True for subclasses of vLLM's own class or its stand-in."""
        base = getattr(sys.modules.get(INTERFACE_MODULE), "LogitsProcessor", None)
        return base is not None and isinstance(found, type) and issubclass(found, base)

    def validate(self, found: Any, sampling_params: SamplingParams, facts: ModelFacts) -> None:
        """Validates as the base class does; turns vLLM's own request error into a ValueError."""
        with refusals_as_value_errors():
            super().validate(found, sampling_params, facts)

    def build(self, found: Any, fd_config: FDConfig) -> LogitsProcessor:
        """Returns an instance that works on torch tensors; it gets contexts of the class of vLLM's module."""
        tensors = TorchTensors()
        slots = RequestSlots(fd_config, sys.modules[INTERFACE_MODULE], tensors)
        return SlotKeyedProcessor(found, torch_config(fd_config), slots, tensors)


class SlotKeyedProcessor(LogitsProcessor):
    """Native wrapper of a slot-keyed processor.

    A request whose `add_request` raises is reported by its row, and `apply` does not see that row: the slot may still
    have the state of its last request.
    """

    def __init__(self, found: Any, config: VllmConfig, slots: RequestSlots, tensors: Tensors) -> None:
        self._slots = slots
        self._tensors = tensors
        with set_current_vllm_config(config), tensors.calls():
            self._processor = found(config, slots.state)
        self._wanted = np.zeros(slots.state.max_num_reqs, bool)
        self._failed = np.zeros(slots.state.max_num_reqs, bool)

    def use_actions(self, actions: Actions) -> None:
        """Passes the verbs on."""
        give_actions(self._processor, actions)

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        """Adds new requests and flushes staged writes; raises RowErrors for requests that could not be added."""
        with self._tensors.calls():
            failed = self._add_new(share_inputs)
            self._processor.apply_staged_writes()
        raise_row_errors(failed)

    def _add_new(self, share_inputs: Mapping[str, Any]) -> dict[int, Exception]:
        """Adds the new requests; returns by row the errors of requests that could not be added."""
        failed: dict[int, Exception] = {}
        for slot in self._slots.follow(share_inputs):
            self._wanted[slot] = self._failed[slot] = False
            try:
                self._wanted[slot] = self._add(slot, share_inputs)
            except BaseException as error:  # noqa: BLE001 - an author's code may raise anything
                self._failed[slot] = True
                failed[int(np.searchsorted(self._slots.active, slot))] = contained(error)
        return failed

    def _add(self, slot: int, share_inputs: Mapping[str, Any]) -> bool:
        wanted = self._processor.add_request(slot, self._slots.params_of(slot, share_inputs))
        if wanted is None:
            raise TypeError("add_request returned None; it must return True if apply changes the request's row")
        return bool(wanted)

    def apply(self, logits: Tensor) -> Tensor:
        """Returns the processor's result; calls it only if a request of this step wants it."""
        with self._tensors.calls():
            return self._apply(logits)

    def _apply(self, logits: Tensor) -> Tensor:
        active = self._slots.active
        rows = np.flatnonzero(~self._failed[active])
        if not self._wanted[active[rows]].any():
            return logits
        view = self._tensors.view(logits)
        if len(rows) == len(active):
            return self._tensors.result(self._processor.apply(view, self._slots.context()), logits)
        index = self._tensors.of(rows)
        part = view[index]
        view[index] = require_same_kind(self._processor.apply(part, self._slots.context(rows)), part)
        return logits
