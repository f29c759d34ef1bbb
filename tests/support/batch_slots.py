"""Slot arrays that tests of batch updates write into."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fastdeploy_lp.logits_processor import ProcessorArgs
from fastdeploy_lp.request.sampling_params import SamplingParams


class Slots:
    """Slot arrays that tests write into."""

    def __init__(self, count: int) -> None:
        self.arrays: dict[str, Any] = {
            "stop_flags": np.ones((count, 1), bool),
            "req_ids": [""] * count,
            "logits_processors_args": [ProcessorArgs() for _ in range(count)],
            "sampling_params": [None] * count,
            "prompt_token_ids": [[] for _ in range(count)],
            "output_token_ids": [[] for _ in range(count)],
        }

    def enter(self, slot: int, request_id: str, args: Mapping[str, Any] | None = None) -> None:
        self.arrays["stop_flags"][slot] = False
        self.arrays["req_ids"][slot] = request_id
        self.arrays["logits_processors_args"][slot] = ProcessorArgs(args or {})
        self.arrays["sampling_params"][slot] = SamplingParams(seed=slot)
        self.arrays["prompt_token_ids"][slot] = [slot, len(request_id)]
        self.arrays["output_token_ids"][slot] = []

    def leave(self, slot: int) -> None:
        self.arrays["stop_flags"][slot] = True
        self.arrays["req_ids"][slot] = ""

    @property
    def active(self) -> list[int]:
        return np.flatnonzero(~self.arrays["stop_flags"][:, 0]).tolist()

    @property
    def owners(self) -> dict[int, str]:
        """Whose each output list is, by its identity."""
        pairs = zip(self.arrays["output_token_ids"], self.arrays["req_ids"], strict=True)
        return {id(output): request_id for output, request_id in pairs}

    @property
    def in_order(self) -> list[str]:
        return [self.arrays["req_ids"][slot] for slot in self.active]
