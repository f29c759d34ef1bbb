"""Requests in their slots as vLLM's slot-keyed processors learn of them, made from `share_inputs`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fastdeploy_lp.logits_processor.dialects.batch_tracker import ServedParams
from fastdeploy_lp.logits_processor.dialects.slot_arrays import SlotArray, Tensors, TokenArray

if TYPE_CHECKING:
    from fastdeploy_lp.config import FDConfig


class RequestSlots:
    """Finds the requests that are new in their slots, and describes the rows of a step.

    A request is new with its first row in a slot: also after a preemption, and for a processor that was rebuilt.
    `state` and the contexts are of the classes of `interface`, a module of vLLM's interface. `active` [rows] int64 are
    the slots of the step's rows, ascending.
    """

    def __init__(self, fd_config: FDConfig, interface: Any, tensors: Tensors) -> None:
        model, slots = fd_config.model_config, fd_config.scheduler_config.max_num_seqs
        self._interface = interface
        self._tensors = tensors
        self._eos_token_ids = model.eos_token_ids
        # A slot's version changes with its request. It is above 0 for every request.
        self._versions = np.zeros(slots, np.int64)
        self._tokens = TokenArray(slots, model.max_model_len, tensors)
        self._prompt_len, self._prefill_len, self._total_len = (SlotArray(slots, tensors) for _ in range(3))
        self._last_tokens: NDArray[np.int32] = np.zeros(slots, np.int32)
        self.active: NDArray[np.int64] = np.zeros(0, np.int64)
        self.state = interface.LogitsProcRequestState(
            device=tensors.device,
            max_num_reqs=slots,
            vocab_size=model.vocab_size,
            all_token_ids=self._tokens,
            prompt_len=self._prompt_len,
            prefill_len=self._prefill_len,
            total_len=self._total_len,
        )

    def follow(self, share_inputs: Mapping[str, Any]) -> list[int]:
        """Reads the slots of a step; returns those with new requests, ascending."""
        versions = share_inputs["args_versions"]
        self.active = np.flatnonzero(~share_inputs["stop_flags"][:, 0])
        new = self.active[self._versions[self.active] != versions[self.active]]
        prompts, ids = share_inputs["prompt_lens"][:, 0], share_inputs["token_ids_all_cpu"]
        lens = prompts + share_inputs["step_idx"][:, 0]
        for slot in new.tolist():
            self._tokens.enter(slot, ids, int(lens[slot]))
        self._versions[new] = versions[new]
        self._prompt_len.np[new], self._prefill_len.np[new] = prompts[new], lens[new]
        self._tokens.extend(self.active, ids, lens[self.active])
        self._total_len.np[self.active] = lens[self.active]
        self._last_tokens[self.active] = ids[self.active, lens[self.active] - 1]
        if new.size:
            self._prompt_len.flush()
            self._prefill_len.flush()
        self._total_len.flush()
        entered: list[int] = new.tolist()
        return entered

    def params_of(self, slot: int, share_inputs: Mapping[str, Any]) -> ServedParams:
        """Returns a copy of a slot's parameters with the arguments that the processor sees."""
        args = share_inputs["logits_processors_args"][slot]
        return ServedParams.of(share_inputs["sampling_params"][slot], args, self._eos_token_ids)

    def context(self, rows: NDArray[np.int64] | None = None) -> Any:
        """Returns the step's context, of these rows [n] alone if they are given."""
        slots = self.active if rows is None else self.active[rows]
        lens = self._total_len.np[slots]
        mapping = self._tensors.of(slots.copy())
        return self._interface.LogitsContext(
            expanded_idx_mapping=mapping,
            idx_mapping=mapping,
            idx_mapping_np=slots.astype(np.intp),
            expanded_local_pos=self._tensors.of(np.zeros(len(slots), np.int32)),
            input_ids=self._tensors.of(self._last_tokens[slots]),
            pos=self._tensors.of(lens.astype(np.int64) - 1),
            seq_lens_upper_bound_np=lens,
        )
