"""Logits processors that a request can make fail, or that show in which order they ran."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import BaseModel

from fastdeploy_lp import SamplingParams
from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.logits_processor.vllm_v1 import AdapterLogitsProcessor, RequestLogitsProcessor
from fastdeploy_lp.openai.logits_processor import LogitsProcessor

if TYPE_CHECKING:
    from paddle import Tensor


class BoomParams(BaseModel):
    """`boom`: how many tokens the request gets before the processor raises."""

    boom: int | None = None


class RaisesOnBoom(LogitsProcessor):
    """Spoils every row and raises, once a request that passes `boom` has so many tokens."""

    Params = BoomParams

    def __init__(self, fd_config: FDConfig) -> None:
        self._due = False

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        self._due = False
        for slot in np.flatnonzero(~share_inputs["stop_flags"][:, 0]):
            boom = share_inputs["logits_processors_args"][slot].boom
            self._due |= boom is not None and len(share_inputs["output_token_ids"][slot]) >= boom

    def apply(self, logits: Tensor) -> Tensor:
        if self._due:
            logits[:] = 0.0
            raise RuntimeError("boom was asked for")
        return logits


class RaisesInOneRow(AdapterLogitsProcessor):
    """A callable for each request; it raises if the prompt starts with the token `boom_at`."""

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> RequestLogitsProcessor | None:
        boom_at = (params.extra_args or {}).get("boom_at")
        if boom_at is None:
            return None

        def process(prompt_ids: list[int], output_ids: list[int], row: Tensor) -> Tensor:
            if prompt_ids[0] == boom_at:
                raise RuntimeError("this row was asked for")
            return row

        return process


class ZeroParams(BaseModel):
    """`zero_token`: whose logit becomes 0."""

    zero_token: int | None = None


class SetsToZero(LogitsProcessor):
    """Sets the logit of `zero_token` to 0, whatever ran before."""

    Params = ZeroParams
    only_with_args = True

    def __init__(self, fd_config: FDConfig) -> None:
        self._tokens: list[int | None] = []

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        active = np.flatnonzero(~share_inputs["stop_flags"][:, 0])
        self._tokens = [share_inputs["logits_processors_args"][slot].zero_token for slot in active]

    def apply(self, logits: Tensor) -> Tensor:
        for row, token in enumerate(self._tokens):
            if token is not None:
                logits[row, token] = 0.0
        return logits
