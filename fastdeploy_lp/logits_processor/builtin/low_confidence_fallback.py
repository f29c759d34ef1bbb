"""Writes a phrase when the model is unsure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from fastdeploy_lp.logits_processor.builtin.watched_phrase import WatchedPhraseProcessor, WatchedRequest
from fastdeploy_lp.logits_processor.phrase import Phrase
from fastdeploy_lp.logits_processor.sequence_state.slot_states import SlotRequest
from fastdeploy_lp.platforms import to_device

if TYPE_CHECKING:
    from paddle import Tensor

DEFAULT_MIN_P, DEFAULT_TOLERATE = 0.4, 1
PIECE = 8192


class LowConfidenceFallbackParams(BaseModel):
    """`fallback_phrase`: the phrase to write, a text or token ids.

    fallback_min_p: a step is unsure if its most likely token is less likely than this. fallback_tolerate: number of
    unsure steps that are tolerated.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    fallback_phrase: Phrase | None
    fallback_min_p: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = DEFAULT_MIN_P
    fallback_tolerate: Annotated[int, Field(ge=0)] = DEFAULT_TOLERATE


class LowConfidenceFallbackLogitsProcessor(WatchedPhraseProcessor):
    """`{"fallback_phrase": "I do not know."}` writes the phrase once when more steps were unsure than are tolerated.

    logits-processor-zoo calls it PreventHallucination. Probabilities are computed from the processor's input logits at
    temperature 1.
    """

    Params = LowConfidenceFallbackParams

    def state_of(self, request: SlotRequest) -> WatchedRequest | None:
        """See the base class."""
        return _Doubts(request) if request.args.get("fallback_phrase") else None

    def sign_in(self, row: NDArray[Any], state: _Doubts) -> bool:
        """See the base class."""
        greatest, weight = row.max(), np.float32(0.0)
        if not np.isfinite(greatest) or state.min_p <= 0:
            return False  # the guard handles rows without a usable logit
        # In pieces that stay in the CPU cache; most unsure rows are detected in the first one.
        for begin in range(0, len(row), PIECE):
            weights = np.subtract(row[begin : begin + PIECE], greatest, dtype=np.float32)
            weight += np.exp(weights, out=weights).sum()
            if state.min_p * weight > 1.0:
                return True
        return False

    def signs_on_device(self, rows: Tensor, states: Sequence[_Doubts]) -> Tensor:
        """See the base class."""
        import paddle

        likeliest = paddle.nn.functional.softmax(rows, axis=-1).max(axis=-1)
        return likeliest < to_device(np.array([state.min_p for state in states], np.float32))


class _Doubts(WatchedRequest):
    """Counts a request's unsure steps."""

    def __init__(self, request: SlotRequest) -> None:
        super().__init__(request, request.args["fallback_phrase"])
        self.min_p: float = request.args.get("fallback_min_p", DEFAULT_MIN_P)
        self._tolerated: int = request.args.get("fallback_tolerate", DEFAULT_TOLERATE)

    @property
    def armed(self) -> bool:
        """True if no further unsure step is tolerated."""
        return self._tolerated <= 0

    def note(self) -> None:
        """Counts one more unsure step."""
        self._tolerated -= 1
