"""Makes an output begin with given words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict

from fastdeploy_lp.logits_processor.builtin.forcing import ForcingProcessor, ForcingState
from fastdeploy_lp.logits_processor.phrase import Phrase
from fastdeploy_lp.logits_processor.sequence_state.slot_states import SlotRequest


class ForcedSequenceParams(BaseModel):
    """`forced_sequence`: the first words of the output, a text or token ids."""

    model_config = ConfigDict(extra="forbid", strict=True)

    forced_sequence: Phrase | None


class ForcedSequenceLogitsProcessor(ForcingProcessor):
    """`{"forced_sequence": "Sure, here is"}` makes the output begin with these words; then the model continues freely.

    Known as prefix forcing; Hugging Face's `forced_bos_token_id` is the case of one token.
    """

    Params = ForcedSequenceParams

    def state_of(self, request: SlotRequest) -> ForcingState | None:
        """See the base class."""
        sequence = request.args.get("forced_sequence")
        return _Beginning(sequence, request.output) if sequence else None


@dataclass(frozen=True)
class _Beginning:
    sequence: Any
    output: list[int]

    def forced(self) -> int | None:
        """Returns the token of the sequence at the output's length, None after the last one."""
        length = len(self.output)
        return self.sequence[length] if length < len(self.sequence) else None
