"""Keeps an output from ending before it has a minimum number of tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from fastdeploy_lp.logits_processor.builtin.slot_processor import SlotProcessor
from fastdeploy_lp.logits_processor.sequence_state.slot_states import SlotRequest

if TYPE_CHECKING:
    from paddle import Tensor

    from fastdeploy_lp.config import FDConfig
    from fastdeploy_lp.sampling_params import SamplingParams

Count = Annotated[int, Field(strict=True, ge=0, le=2**63 - 1)]


class MinTokensParams(BaseModel):
    """`min_tokens`: minimum number of output tokens, 0 to `max_tokens`."""

    model_config = ConfigDict(extra="forbid")

    min_tokens: Count | None = None


@dataclass(frozen=True)
class _Minimum:
    count: int
    stop_token_ids: list[int]


class MinTokensLogitsProcessor(SlotProcessor[_Minimum]):
    """`{"min_tokens": n}` sets end-of-sequence and stop tokens to -inf until the output has n tokens.

    Same rule as the sampler's field of this name (as in vLLM), applied at the processor's place in the chain; stop
    strings still end the output.
    """

    Params = MinTokensParams

    def __init__(self, fd_config: FDConfig) -> None:
        super().__init__(fd_config)
        self._minimum = self._rows = self._tokens = np.empty(0, np.int64)
        # Number of steps in which the same requests stay below their minimum; each gets one token a step.
        self._steps_alike = 0

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Raises ValueError if `min_tokens` is greater than `max_tokens`."""
        minimum, most = (sampling_params.extra_args or {}).get("min_tokens") or 0, sampling_params.max_tokens
        if most is not None and minimum > most:
            raise ValueError(f"min_tokens: must be at most max_tokens, which is {most}")

    def _build(self, request: SlotRequest) -> _Minimum | None:
        count, params = request.args.get("min_tokens"), request.params
        stops = {*(params.stop_token_ids or ()), *(() if params.ignore_eos else self._eos_token_ids)}
        return _Minimum(count, sorted(stops)) if count and stops else None

    def _prepare(self, share_inputs: Mapping[str, Any], *, changed: bool) -> None:
        states, rows = self._slots.states, self._slots.rows
        if changed:
            self._minimum = np.array([state.count for state in states], np.int64)
        self._steps_alike -= 1
        if self._steps_alike > 0 and not changed:
            return
        missing = self._minimum - share_inputs["step_idx"][self._slots.slots, 0]
        short = missing > 0
        self._steps_alike = int(missing[short].min()) if short.any() else np.iinfo(np.int64).max
        banned = [states[at].stop_token_ids for at in np.flatnonzero(short).tolist()]
        self._rows = np.repeat(rows[short], np.array([len(tokens) for tokens in banned], np.int64))
        self._tokens = np.array([token for tokens in banned for token in tokens], np.int64)

    def _edit(self, logits: Tensor) -> None:
        if self._tokens.size:
            self._ops.ban(logits, self._rows, self._tokens)
