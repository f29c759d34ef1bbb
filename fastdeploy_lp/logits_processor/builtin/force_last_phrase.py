"""Writes a phrase before the output ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from fastdeploy_lp.logits_processor.builtin.watched_phrase import (
    WatchedPhraseProcessor,
    WatchedRequest,
    greatest_is_one_of,
)
from fastdeploy_lp.logits_processor.phrase import Phrase
from fastdeploy_lp.logits_processor.sequence_state.slot_states import SlotRequest

if TYPE_CHECKING:
    from paddle import Tensor


class ForceLastPhraseParams(BaseModel):
    """`last_phrase`: the words that stand in the output before it ends, a text or token ids."""

    model_config = ConfigDict(extra="forbid", strict=True)

    last_phrase: Phrase | None


class ForceLastPhraseLogitsProcessor(WatchedPhraseProcessor):
    """`{"last_phrase": "Sources:"}` writes the phrase where the model wants to end, and lets it go on from there.

    It wants to when an end-of-sequence or stop token is the most likely one; before the phrase such a token is ruled
    out, so that it cannot be drawn either. From logits-processor-zoo.
    """

    Params = ForceLastPhraseParams

    def state_of(self, request: SlotRequest) -> WatchedRequest | None:
        """As the base class says."""
        phrase = request.args.get("last_phrase")
        ends = [*self.eos_token_ids, *((request.params and request.params.stop_token_ids) or ())]
        if not phrase or not ends:
            return None
        state = WatchedRequest(request, phrase)
        state.banned = ends
        return state

    def sign_in(self, row: NDArray[Any], state: WatchedRequest) -> bool:
        """As the base class says."""
        return int(row.argmax()) in state.banned

    def signs_on_device(self, rows: Tensor, states: Sequence[WatchedRequest]) -> Tensor:
        """As the base class says."""
        return greatest_is_one_of(rows, [state.banned for state in states])
