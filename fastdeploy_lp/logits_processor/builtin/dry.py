"""Lowers the logits of tokens that continue a repetition; the longer the repetition, the more."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from fastdeploy_lp.logits_processor.builtin.slot_processor import SlotProcessor
from fastdeploy_lp.logits_processor.builtin.token_lists import ListedToken
from fastdeploy_lp.logits_processor.sequence_state.repetition_lengths import RepetitionLengths
from fastdeploy_lp.logits_processor.sequence_state.slot_states import SlotRequest

if TYPE_CHECKING:
    from paddle import Tensor

    from fastdeploy_lp.config import FDConfig

Multiplier = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=0, le=1e6)]
Base = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=1, le=1000)]
Length = Annotated[int, Field(strict=True, ge=1, le=1024)]
Window = Annotated[int, Field(strict=True, ge=-1, le=2**31)]
# Far above any logit, and far below the limit of float32.
MAX_LOG = math.log(1e9)


class DRYParams(BaseModel):
    """Definition and cost of a repetition.

    `dry_multiplier`: strength, 0 for none. `dry_base`: growth factor per token. `dry_allowed_length`: length of the
    longest repetition that costs nothing. `dry_sequence_breakers`: token ids that no repetition spans.
    `dry_penalty_last_n`: number of last tokens to search, -1 for all, 0 for none.
    """

    model_config = ConfigDict(extra="forbid")

    dry_multiplier: Multiplier
    dry_base: Base = 1.75
    dry_allowed_length: Length = 2
    dry_sequence_breakers: Annotated[list[ListedToken], Field(max_length=4096)] = []
    dry_penalty_last_n: Window = -1


NAMES = tuple(DRYParams.model_fields)


@dataclass(frozen=True)
class _Watched:
    repetitions: RepetitionLengths
    allowed: int
    log_multiplier: float
    log_base: float


class DRYLogitsProcessor(SlotProcessor[_Watched]):
    """`{"dry_multiplier": m}` subtracts m * base ** (n - allowed) from each token that would continue a repetition.

    n is the length of the longest run of tokens that ends prompt and output and also occurs earlier, followed by that
    token; runs of fewer than `dry_allowed_length` tokens cost nothing. "Don't repeat yourself" by p-e-w, 2024, as in
    text-generation-webui and llama.cpp; breakers are token ids here.
    """

    Params = DRYParams
    keeps_rows_valid = True

    def __init__(self, fd_config: FDConfig) -> None:
        super().__init__(fd_config)
        self._rows = self._tokens = np.empty(0, np.int64)
        self._values = np.empty(0, np.float32)

    def _build(self, request: SlotRequest) -> _Watched | None:
        if not request.args.get("dry_multiplier"):
            return None
        given = DRYParams.model_construct(**{name: request.args[name] for name in NAMES if name in request.args})
        if given.dry_penalty_last_n == 0:
            return None
        window, breakers = max(given.dry_penalty_last_n, 0), given.dry_sequence_breakers
        repetitions = RepetitionLengths(request.prompt, request.output, breakers, window)
        return _Watched(repetitions, given.dry_allowed_length, math.log(given.dry_multiplier), math.log(given.dry_base))

    def _prepare(self, share_inputs: Mapping[str, Any], *, changed: bool) -> None:  # noqa: ARG002 - every step differs
        found = [(state, *state.repetitions.continuations(state.allowed)) for state in self._slots.states]
        self._rows = np.repeat(self._slots.rows, np.array([len(tokens) for _, tokens, _ in found], np.int64))
        self._tokens = np.concatenate([tokens for _, tokens, _ in found] or [self._rows])
        logs = [state.log_multiplier + state.log_base * (lengths - state.allowed) for state, _, lengths in found]
        self._values = -np.exp(np.minimum(np.concatenate(logs or [np.empty(0)]), MAX_LOG)).astype(np.float32)

    def _edit(self, logits: Tensor) -> None:
        if self._tokens.size:
            self._cuts.add(logits, self._rows, self._tokens, self._values)
