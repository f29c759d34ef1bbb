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
    """`last_phrase`: the phrase that the output contains before it ends, a text or token ids."""

    model_config = ConfigDict(extra="forbid", strict=True)

    last_phrase: Phrase | None


class ForceLastPhraseLogitsProcessor(WatchedPhraseProcessor):
    """`{"last_phrase": "Sources:"}` writes the phrase when the model is about to end, and lets it continue from there.

    The phrase begins when an end-of-sequence or stop token is the most likely one. Before the phrase such tokens are
    ruled out, so that they cannot be sampled. From logits-processor-zoo.
    """

    Params = ForceLastPhraseParams

    def state_of(self, request: SlotRequest) -> WatchedRequest | None:
        """See the base class."""
        phrase = request.args.get("last_phrase")
        ends = [*self.eos_token_ids, *((request.params and request.params.stop_token_ids) or ())]
        if not phrase or not ends:
            return None
        state = WatchedRequest(request, phrase)
        state.banned = ends
        return state

    def sign_in(self, row: NDArray[Any], state: WatchedRequest) -> bool:
        """See the base class."""
        return int(row.argmax()) in state.banned

    def signs_on_device(self, rows: Tensor, states: Sequence[WatchedRequest]) -> Tensor:
        """See the base class."""
        return greatest_is_one_of(rows, [state.banned for state in states])
