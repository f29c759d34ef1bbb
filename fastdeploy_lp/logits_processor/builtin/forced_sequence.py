"""Makes an answer begin with given words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict

from fastdeploy_lp.logits_processor.builtin.forcing import ForcingProcessor, ForcingState
from fastdeploy_lp.logits_processor.phrase import Phrase
from fastdeploy_lp.logits_processor.sequence_state.slot_states import SlotRequest


class ForcedSequenceParams(BaseModel):
    """`forced_sequence`: the words that the output begins with, a text or token ids."""

    model_config = ConfigDict(extra="forbid", strict=True)

    forced_sequence: Phrase | None


class ForcedSequenceLogitsProcessor(ForcingProcessor):
    """`{"forced_sequence": "Sure, here is"}` makes the output begin with these words; then the model goes on freely.

    Known as prefix forcing; Hugging Face's `forced_bos_token_id` is the case of one token.
    """

    Params = ForcedSequenceParams

    def state_of(self, request: SlotRequest) -> ForcingState | None:
        """As the base class says."""
        sequence = request.args.get("forced_sequence")
        return _Beginning(sequence, request.output) if sequence else None


@dataclass(frozen=True)
class _Beginning:
    sequence: Any
    output: list[int]

    def forced(self) -> int | None:
        """The token of the sequence at the output's length."""
        length = len(self.output)
        return self.sequence[length] if length < len(self.sequence) else None
