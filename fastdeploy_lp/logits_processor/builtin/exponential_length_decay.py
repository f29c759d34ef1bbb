"""Makes the end of the output more likely as the output grows."""

from __future__ import annotations

import math
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

Start = Annotated[int, Field(strict=True, ge=0, le=2**31)]
Factor = Annotated[float, Field(strict=True, allow_inf_nan=False, gt=0, le=1000)]
# A greater logit makes no difference, and a far greater one would not be finite.
MAX_LOG = math.log(1e9)


class ExponentialLengthDecayParams(BaseModel):
    """`exponential_decay_length_penalty`: number of tokens before it starts, and the factor, above 0, up to 1000."""

    model_config = ConfigDict(extra="forbid")

    exponential_decay_length_penalty: tuple[Start, Factor] | None = None


@dataclass(frozen=True)
class _Decay:
    start: int
    log_factor: float


class ExponentialLengthDecayLogitsProcessor(SlotProcessor[_Decay]):
    """`{"exponential_decay_length_penalty": [start, factor]}` raises end-of-sequence logits after `start` tokens.

    Adds (factor ** (output tokens beyond start) - 1) times its magnitude to the logit of each end-of-sequence token; a
    factor below 1 lowers it. As in Hugging Face.
    """

    Params = ExponentialLengthDecayParams
    keeps_rows_valid = True

    def __init__(self, fd_config: FDConfig) -> None:
        super().__init__(fd_config)
        self._ends = np.array(sorted(self._eos_token_ids), np.int64)
        self._starts = self._rows = self._tokens = np.empty(0, np.int64)
        self._log_factors = np.empty(0, np.float64)
        self._values = np.empty(0, np.float32)

    def _build(self, request: SlotRequest) -> _Decay | None:
        given = request.args.get("exponential_decay_length_penalty")
        return _Decay(given[0], math.log(given[1])) if given else None

    def _prepare(self, share_inputs: Mapping[str, Any], *, changed: bool) -> None:
        if changed:
            self._starts = np.array([state.start for state in self._slots.states], np.int64)
            self._log_factors = np.array([state.log_factor for state in self._slots.states])
        beyond = share_inputs["step_idx"][self._slots.slots, 0] - self._starts
        late = beyond > 0
        added = np.expm1(np.minimum(beyond[late] * self._log_factors[late], MAX_LOG)).astype(np.float32)
        self._rows = np.repeat(self._slots.rows[late], len(self._ends))
        self._tokens = np.tile(self._ends, len(added))
        self._values = np.repeat(added, len(self._ends))

    def _edit(self, logits: Tensor) -> None:
        if self._tokens.size:
            self._cuts.add_scaled(logits, self._rows, self._tokens, self._values)
