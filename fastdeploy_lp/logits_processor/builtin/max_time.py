"""Ends the output after a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from fastdeploy_lp.logits_processor.builtin.forcing import ForcingProcessor, ForcingState
from fastdeploy_lp.logits_processor.phrase import SentenceEnds
from fastdeploy_lp.logits_processor.sequence_state.slot_states import SlotRequest


class MaxTimeParams(BaseModel):
    """`max_time`: seconds from the first token on, after which the output ends.

    max_time_complete_sentences: it then goes on to the end of a sentence; true, or the texts that end one.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    max_time: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None
    max_time_complete_sentences: SentenceEnds = []


class MaxTimeLogitsProcessor(ForcingProcessor):
    """`{"max_time": seconds}` ends the output with the end-of-sequence token when the time is up.

    The clock begins with the request's first token, whatever it waited before; a request that is preempted keeps its
    clock. From logits-processor-zoo and Hugging Face's `max_time`.
    """

    Params = MaxTimeParams
    # Requests that left for good take places, too, until those that were preempted are back.
    remembered_per_slot = 4
    clock: Callable[[], float] = staticmethod(time.monotonic)

    def state_of(self, request: SlotRequest) -> ForcingState | None:
        """As the base class says."""
        seconds = request.args.get("max_time")
        if seconds is None or not self.eos_token_ids:
            return None
        ends = frozenset(request.args.get("max_time_complete_sentences") or ())
        return _Deadline(self.clock, self.clock() + seconds, self.eos_token_ids[0], request.output, ends)


@dataclass(frozen=True)
class _Deadline:
    clock: Callable[[], float]
    at: float
    eos: int
    output: list[int]
    sentence_ends: frozenset[int]

    def forced(self) -> int | None:
        """The end once the time is up."""
        if self.clock() < self.at:
            return None
        waits = self.sentence_ends and self.output and self.output[-1] not in self.sentence_ends
        return None if waits else self.eos
