"""Removes the top choices in random steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from fastdeploy_lp.logits_processor.builtin.slot_processor import SlotProcessor
from fastdeploy_lp.logits_processor.sequence_state.slot_states import SlotRequest
from fastdeploy_lp.logits_processor.sequence_state.uniform import seeded_uniform

if TYPE_CHECKING:
    from paddle import Tensor

    from fastdeploy_lp.config import FDConfig

Probability = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=0, le=1)]
Threshold = Annotated[float, Field(strict=True, allow_inf_nan=False, gt=0, le=1)]
# Separates these random numbers from the ones that sample tokens with the same seed.
SALT = np.uint64(0x5854435854435854)


class XTCParams(BaseModel):
    """`xtc_probability`: share of steps, 0 to 1. `xtc_threshold`: minimum probability of a top choice, above 0, to
    1."""

    model_config = ConfigDict(extra="forbid")

    xtc_probability: Probability
    xtc_threshold: Threshold = 0.1


@dataclass(frozen=True)
class _Choice:
    probability: float
    threshold: float


class XTCLogitsProcessor(SlotProcessor[_Choice]):
    """`{"xtc_probability": p, "xtc_threshold": t}` removes all tokens of probability t or more but the least likely.

    A step does this with probability p, and only if there are two such tokens or more; a threshold above 0.5 never
    finds two. The request's seed and the position determine the steps. "Exclude Top Choices" by p-e-w, 2024, as in
    text-generation-webui and llama.cpp; probabilities are taken before the temperature.
    """

    Params = XTCParams
    keeps_rows_valid = True

    def __init__(self, fd_config: FDConfig) -> None:
        super().__init__(fd_config)
        # Imported here, since it imports Paddle.
        from fastdeploy_lp.model_executor.ops.row_cuts import Cut

        self._exclude_top = Cut.EXCLUDE_TOP
        self._rows = np.empty(0, np.int64)
        self._probabilities = self._thresholds = self._values = np.empty(0, np.float32)

    def _build(self, request: SlotRequest) -> _Choice | None:
        if not request.args.get("xtc_probability"):
            return None
        params = XTCParams.model_construct(**{name: request.args[name] for name in NAMES if name in request.args})
        return _Choice(params.xtc_probability, params.xtc_threshold)

    def _prepare(self, share_inputs: Mapping[str, Any], *, changed: bool) -> None:
        if changed:
            self._probabilities = np.array([state.probability for state in self._slots.states], np.float32)
            self._thresholds = np.array([state.threshold for state in self._slots.states], np.float32)
        slots = self._slots.slots
        positions = share_inputs["prompt_lens"][slots, 0] + share_inputs["step_idx"][slots, 0]
        drawn = seeded_uniform(share_inputs["seed"][slots, 0] ^ SALT, positions.astype(np.uint64))
        happens = drawn <= self._probabilities
        self._rows, self._values = self._slots.rows[happens], self._thresholds[happens]

    def _edit(self, logits: Tensor) -> None:
        if self._rows.size:
            self._cuts.cut(logits, self._exclude_top, self._rows, self._values)


NAMES = tuple(XTCParams.model_fields)
