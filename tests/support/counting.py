"""A processor whose output counts how often it was called."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.logits_processor import LogitsProcessor

if TYPE_CHECKING:
    from paddle import Tensor


class CountsSteps(LogitsProcessor):
    """Forces, for requests with `counts_steps`, the number of calls since the request began: 1, 2, 3, ...

    A call with logits of another shape than one row a request and one column a token of the vocabulary is an error.
    """

    def __init__(self, fd_config: FDConfig) -> None:
        self._vocab_size = fd_config.model_config.vocab_size
        self._counts: dict[int, int] = {}
        self._rows: list[int] = []

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        self._rows = np.flatnonzero(~share_inputs["stop_flags"][:, 0]).tolist()
        args = share_inputs["logits_processors_args"]
        using = [slot for slot in self._rows if args[slot].counts_steps]
        self._counts = {slot: self._counts[slot] if share_inputs["step_idx"][slot, 0] else 0 for slot in using}

    def apply(self, logits: Tensor) -> Tensor:
        if list(logits.shape) != [len(self._rows), self._vocab_size]:
            raise ValueError(f"logits of shape {list(logits.shape)}")
        for row, slot in enumerate(self._rows):
            if slot in self._counts:
                self._counts[slot] += 1
                logits[row, :] = float("-inf")
                logits[row, self._counts[slot]] = 0.0
        return logits
